#include "offload/piece_stream.h"

#include <span>
#include <utility>

namespace tessera::offload {
namespace {

constexpr std::size_t kMostAhead = 3;  // pieces that are read while one is changed

std::size_t bytes_of_lane(const LanePiece& piece, const Lane& lane) {
  return static_cast<std::size_t>(piece.size) * c10::elementSize(lane.dtype);
}

std::uint64_t offset_of_lane(const LanePiece& piece, const Lane& lane) {
  return static_cast<std::uint64_t>(piece.first) * c10::elementSize(lane.dtype);
}

}  // namespace

void PieceStream::run(const std::vector<LanePiece>& pieces, const Change& change) {
  std::size_t next = 0;
  const std::size_t most_ahead = places_.options.overlap() ? kMostAhead : 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (next == i) read(pieces[next++], /*must=*/true);
    while (next < pieces.size() && next <= i + most_ahead && read(pieces[next], /*must=*/false)) ++next;
    const Flight flight = std::move(flights_.front());
    flights_.pop_front();
    {
      const Waiting waiting(places_.step_wait_seconds);
      for (const Transfer& one : flight.reads) one.wait();
    }
    std::vector<at::Tensor> lanes;
    for (std::size_t lane = 0; lane < pieces[i].lanes.size(); ++lane) {
      const Lane& of = pieces[i].lanes[lane];
      lanes.push_back(flight.memory[lane] ? tensor_in(flight.memory[lane], pieces[i].size, of.dtype)
                                          : of.flat.narrow(0, pieces[i].first, pieces[i].size));
    }
    change(pieces[i], lanes);
    lanes.clear();
    write(pieces[i], flight);
  }
}

bool PieceStream::read(const LanePiece& piece, bool must) {
  Flight flight;
  for (const Lane& lane : piece.lanes) {
    std::shared_ptr<std::byte> memory;
    if (lane.block) {
      const std::size_t num_bytes = bytes_of_lane(piece, lane);
      memory = places_.memory->try_take(num_bytes, Kind::kBuffers);
      while (!memory && must && !writing_.empty()) {
        const Waiting waiting(places_.step_wait_seconds);
        writing_.front().wait();
        writing_.pop_front();
        memory = places_.memory->try_take(num_bytes, Kind::kBuffers);
      }
      if (!memory && !must) return false;
      if (!memory) memory = places_.memory->take(num_bytes, Kind::kBuffers, piece.what);
    }
    flight.memory.push_back(std::move(memory));
  }
  for (std::size_t lane = 0; lane < piece.lanes.size(); ++lane) {
    const auto& memory = flight.memory[lane];
    if (!memory) continue;
    const Lane& of = piece.lanes[lane];
    flight.reads.push_back(places_.files->read(*of.block, offset_of_lane(piece, of),
                                               std::span(memory.get(), bytes_of_lane(piece, of)), memory));
  }
  flights_.push_back(std::move(flight));
  return true;
}

void PieceStream::write(const LanePiece& piece, const Flight& flight) {
  for (std::size_t lane = 0; lane < piece.lanes.size(); ++lane) {
    const auto& memory = flight.memory[lane];
    if (!memory) continue;
    const Lane& of = piece.lanes[lane];
    writing_.push_back(places_.files->write(*of.block, offset_of_lane(piece, of),
                                            std::span<const std::byte>(memory.get(), bytes_of_lane(piece, of)),
                                            memory));
    if (!places_.options.overlap()) writing_.back().wait();
  }
  while (!writing_.empty() && writing_.front().is_done()) {
    writing_.front().wait();  // throws if it failed
    writing_.pop_front();
  }
}

}  // namespace tessera::offload
