#include "comm/algorithms/message_engine.h"

#include <vector>

namespace tessera::comm {

void MessageEngine::gather(Buffer whole, Buffer piece, const Counts& counts, int root, Deadline deadline) {
  if (rank() != root) {
    messages_.send(piece, root, deadline);
    return;
  }
  copy(whole.slice(offsets_of(counts)[index()], piece.count), piece);
  with_each_other(whole, counts, deadline, [&](Buffer place, int r) { return messages_.start_recv(place, r); });
}

void MessageEngine::scatter(Buffer piece, Buffer whole, const Counts& counts, int root, Deadline deadline) {
  if (rank() != root) {
    messages_.recv(piece, root, deadline);
    return;
  }
  copy(piece, whole.slice(offsets_of(counts)[index()], piece.count));
  with_each_other(whole, counts, deadline, [&](Buffer place, int r) { return messages_.start_send(place, r); });
}

void MessageEngine::with_each_other(Buffer whole, const Counts& counts, Deadline deadline, const Start& start) {
  const auto offsets = offsets_of(counts);
  std::vector<std::unique_ptr<Transfer>> pending;
  for (int r = 0; r < size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (r != rank() && counts[i] > 0) pending.push_back(start(whole.slice(offsets[i], counts[i]), r));
  }
  for (const auto& transfer : pending) transfer->wait(deadline.at());
}

void MessageEngine::all_to_all(Buffer received, const Counts& recv_counts, Buffer sent, const Counts& send_counts,
                               Deadline deadline) {
  const auto recv_offsets = offsets_of(recv_counts);
  const auto send_offsets = offsets_of(send_counts);
  copy(received.slice(recv_offsets[index()], recv_counts[index()]),
       sent.slice(send_offsets[index()], send_counts[index()]));
  // In round k everyone sends k ranks ahead, so that no receiver is flooded.
  for (int step = 1; step < size(); ++step) {
    const auto to = static_cast<std::size_t>(messages_.neighbour(step));
    const auto from = static_cast<std::size_t>(messages_.neighbour(-step));
    messages_.exchange(sent.slice(send_offsets[to], send_counts[to]), static_cast<int>(to),
                       received.slice(recv_offsets[from], recv_counts[from]), static_cast<int>(from), deadline);
  }
}

void MessageEngine::barrier(Deadline deadline) {
  std::byte out{0};
  std::byte in{0};
  for (int step = 1; step < size(); step *= 2) {
    messages_.exchange({&out, 1, c10::ScalarType::Byte}, messages_.neighbour(step), {&in, 1, c10::ScalarType::Byte},
                       messages_.neighbour(-step), deadline);
  }
}

}  // namespace tessera::comm
