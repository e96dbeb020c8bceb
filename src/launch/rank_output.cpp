#include "launch/rank_output.h"

#include <tessera/core/error.h>

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace tessera::launch {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;

Descriptor open_log(const std::filesystem::path& path) {
  constexpr mode_t kMode = 0666;  // as the umask allows
  Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode));
  if (!file) throw StorageError("the log file " + path.string() + " cannot be made: " + std::strerror(errno));
  return file;
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code fault;
  std::filesystem::create_directories(folder, fault);
  if (fault) throw StorageError("the log folder " + folder.string() + " cannot be made: " + fault.message());
}

}  // namespace

RankOutput::RankOutput(int rank, const OutputPlan& plan, Console& console)
    : rank_(rank),
      console_(console),
      lines_{LineSplitter([this](std::string_view line) { take(Stream::kOutput, line); }),
             LineSplitter([this](std::string_view line) { take(Stream::kError, line); })} {
  for (Pipe& one : pipes_) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw CommError(std::string("no pipe can be made: ") + strerror(errno));
    one.read_end = Descriptor(ends[0]);
    one.write_end = Descriptor(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  pipe(Stream::kOutput).shown = plan.shows_output;
  pipe(Stream::kError).shown = plan.shows_errors;
  if (plan.log_folder.empty()) return;
  make_folder(plan.log_folder);
  pipe(Stream::kOutput).log = open_log(plan.log_folder / "stdout.log");
  pipe(Stream::kError).log = open_log(plan.log_folder / "stderr.log");
}

void RankOutput::close_write_ends() {
  for (Pipe& one : pipes_) one.write_end.reset();
}

void RankOutput::read_some(Stream stream) {
  Pipe& from = pipe(stream);
  // As if the rank wrote to the console itself: it is told that nobody reads.
  if (from.shown && !from.log && console_.is_broken(stream)) close(stream);
  if (!from.read_end) return;
  std::array<char, kReadBytes> block{};
  const ssize_t count = read(from.read_end.get(), block.data(), block.size());
  if (count < 0) return;
  if (count == 0) {
    close(stream);
    return;
  }
  const std::string_view bytes(block.data(), static_cast<std::size_t>(count));
  keep(stream, bytes);
  lines(stream).add(bytes);
}

void RankOutput::finish() {
  constexpr int kMaxReads = 64;  // four times what a pipe can hold unless it was made larger
  for (const Stream stream : kStreams) {
    for (int reads = 0; reads < kMaxReads && descriptor(stream) >= 0; ++reads) read_some(stream);
    close(stream);
  }
}

void RankOutput::take(Stream stream, std::string_view line) {
  tail_.add(stream, line);
  if (pipe(stream).shown) console_.add_line(stream, rank_, line);
}

void RankOutput::keep(Stream stream, std::string_view bytes) {
  Descriptor& log = pipe(stream).log;
  while (log && !bytes.empty()) {
    const ssize_t written = write(log.get(), bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      // A full disk should not end a training run.
      console_.add_note("tessera run: a log of rank " + std::to_string(rank_) +
                        " ends here, it cannot be written: " + std::strerror(errno));
      log.reset();
    }
  }
}

void RankOutput::close(Stream stream) {
  if (!pipe(stream).read_end) return;
  pipe(stream).read_end.reset();
  lines(stream).finish();
}

}  // namespace tessera::launch
