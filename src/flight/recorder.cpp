#include <tessera/core/error.h>
#include <tessera/flight/clock.h>
#include <tessera/flight/rank_set.h>
#include <tessera/flight/recorder.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "flight/box.h"

namespace tessera::flight {
namespace {

template <std::size_t size>
std::string text_of(const std::array<char, size>& field) {
  return {field.data(), strnlen(field.data(), size)};
}

}  // namespace

std::optional<CallRecord> read_entry(const Box& box, const CallEntry& entry) {
  const std::uint64_t before = entry.version.load(std::memory_order_acquire);
  if (before == 0 || before % 2 == 1) return std::nullopt;
  CallRecord record;
  record.sequence = entry.sequence;
  record.operation = text_of(entry.operation);
  record.is_collective = entry.is_collective != 0;
  record.dtype = text_of(entry.dtype);
  record.file = text_of(entry.file);
  record.line = entry.line;
  record.state = static_cast<CallState>(std::min<std::uint8_t>(entry.state, 2));
  record.started_ns = entry.started_ns;
  record.ended_ns = entry.ended_ns;
  record.awaited_ns = entry.awaited_ns;
  record.peer = entry.peer;
  const std::size_t num_dims = std::min<std::size_t>(entry.num_dims, kMaxDims);
  record.shape.assign(entry.shape.begin(), entry.shape.begin() + static_cast<std::ptrdiff_t>(num_dims));
  const std::uint32_t group = entry.group;
  std::atomic_thread_fence(std::memory_order_acquire);
  if (entry.version.load(std::memory_order_relaxed) != before) return std::nullopt;
  record.group = group < kMaxGroups ? text_of(box.groups[group].name) : "?";
  return record;
}

namespace {

std::optional<TaskRecord> read_task(const TaskEntry& entry) {
  const std::uint64_t before = entry.version.load(std::memory_order_acquire);
  if (before % 2 == 1 || entry.started_ns == 0) return std::nullopt;
  TaskRecord task{text_of(entry.what), entry.started_ns};
  std::atomic_thread_fence(std::memory_order_acquire);
  if (entry.version.load(std::memory_order_relaxed) != before) return std::nullopt;
  return task;
}

}  // namespace

Snapshot read_box(const Box& box) {
  Snapshot snapshot;
  snapshot.rank = box.rank;
  snapshot.world_size = box.world_size;
  snapshot.process = box.process;
  snapshot.host = text_of(box.host);
  snapshot.verdict = text_of(box.verdict);
  const std::size_t num_groups = std::min<std::size_t>(box.num_groups.load(std::memory_order_acquire), kMaxGroups);
  for (std::size_t i = 0; i < num_groups; ++i) {
    const GroupEntry& group = box.groups[i];
    snapshot.groups.push_back({text_of(group.name), group.size, parse_ranks(text_of(group.ranks))});
  }
  std::map<std::uint64_t, CallRecord> by_ticket;
  for (const CallEntry& entry : box.calls) {
    if (auto record = read_entry(box, entry)) by_ticket.emplace(entry.ticket, std::move(*record));
  }
  for (auto& [ticket, record] : by_ticket) snapshot.calls.push_back(std::move(record));
  snapshot.task = read_task(box.task);
  return snapshot;
}

namespace {

template <std::size_t size>
void put(std::array<char, size>& field, std::string_view text) {
  const std::size_t count = std::min(text.size(), size - 1);
  std::memcpy(field.data(), text.data(), count);
  field[count] = 0;
}

/// The end of a path says more than its beginning.
template <std::size_t size>
void put_end(std::array<char, size>& field, std::string_view text) {
  put(field, text.size() < size ? text : text.substr(text.size() - size + 1));
}

Box* map_box(int descriptor) {
  void* memory = mmap(nullptr, sizeof(Box), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) {
    throw StorageError(std::string("no memory for the record of calls: ") + std::strerror(errno));
  }
  return static_cast<Box*>(memory);
}

Box* open_box(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat status{};
  if (descriptor < 0 || fstat(descriptor, &status) != 0 || status.st_size != static_cast<off_t>(sizeof(Box))) {
    const std::string why = descriptor < 0 ? std::strerror(errno) : "it is that of another version of Tessera";
    if (descriptor >= 0) close(descriptor);
    throw StorageError("the launcher's black box " + path + " cannot be used: " + why +
                       "; start the job with the `tessera` of the library that the program is linked with");
  }
  Box* box = map_box(descriptor);
  close(descriptor);
  return box;
}

}  // namespace

struct Recorder::State {
  explicit State(const std::string& path_of_box) : path(path_of_box), box(*open_box(path)) {}
  explicit State(BlackBox kept) : own(std::move(kept)), path(own->path()), box(*map_box(own->descriptor_)) {}
  ~State() { munmap(&box, sizeof(Box)); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  CallEntry& entry(std::uint64_t ticket) const { return box.calls[ticket % kCapacity]; }
  void put_task(const std::string& what, std::int64_t started_ns) const;

  std::optional<BlackBox> own;  // where no launcher keeps one
  std::string path;
  Box& box;
  mutable std::mutex mutex;
  std::uint64_t oldest = 1;  // no call before it is under way
  std::weak_ptr<CallListener> listener;
  std::atomic<bool> heard = false;
};

Recorder::Recorder() : state_(std::make_unique<State>(BlackBox())) { introduce(0, 1); }

Recorder::Recorder(const std::string& path) : state_(std::make_unique<State>(path)) {}

Recorder::~Recorder() = default;

const std::string& Recorder::path() const { return state_->path; }

void Recorder::introduce(int rank, int world_size) {
  const std::lock_guard lock(state_->mutex);
  Box& box = state_->box;
  box.rank = rank;
  box.world_size = world_size;
  box.process = getpid();
  gethostname(box.host.data(), box.host.size() - 1);
  box.magic.store(kBoxMagic, std::memory_order_release);
}

std::uint32_t Recorder::add_group(const std::string& name, const std::vector<int>& ranks) {
  const std::lock_guard lock(state_->mutex);
  Box& box = state_->box;
  const std::uint32_t index = box.num_groups.load(std::memory_order_relaxed);
  if (index >= kMaxGroups) return kMaxGroups;
  GroupEntry& group = box.groups[index];
  put_end(group.name, name);
  put(group.ranks, ranks_text(ranks));
  group.size = static_cast<std::int32_t>(ranks.size());
  box.num_groups.store(index + 1, std::memory_order_release);
  return index;
}

void Recorder::conclude(const std::string& why) {
  const std::lock_guard lock(state_->mutex);
  put(state_->box.verdict, why);
}

std::uint64_t Recorder::begin(const CallStart& call) {
  const std::lock_guard lock(state_->mutex);
  const std::uint64_t ticket = state_->box.next_ticket.load(std::memory_order_relaxed) + 1;
  CallEntry& entry = state_->entry(ticket);
  const std::uint64_t version = entry.version.load(std::memory_order_relaxed) | 1;
  entry.version.store(version, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  entry.ticket = ticket;
  entry.sequence = call.sequence;
  entry.started_ns = now_ns();
  entry.ended_ns = 0;
  entry.awaited_ns = call.is_collective ? 0 : entry.started_ns;
  entry.peer = call.peer;
  entry.num_dims = static_cast<std::uint32_t>(std::min(call.shape.size(), kMaxDims));
  std::copy_n(call.shape.begin(), entry.num_dims, entry.shape.begin());
  entry.group = call.group;
  entry.line = call.where.line();
  entry.state = static_cast<std::uint8_t>(CallState::kStarted);
  entry.is_collective = call.is_collective ? 1 : 0;
  put(entry.operation, call.operation);
  put(entry.dtype, call.dtype);
  put_end(entry.file, call.where.file_name());
  entry.version.store(version + 1, std::memory_order_release);
  state_->box.next_ticket.store(ticket, std::memory_order_release);
  return ticket;
}

void Recorder::set_awaited(std::uint64_t ticket, bool is_awaited) {
  const std::lock_guard lock(state_->mutex);
  CallEntry& entry = state_->entry(ticket);
  if (entry.ticket != ticket) return;  // overwritten since
  const std::uint64_t version = entry.version.load(std::memory_order_relaxed) | 1;
  entry.version.store(version, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  entry.awaited_ns = is_awaited ? now_ns() : 0;
  entry.version.store(version + 1, std::memory_order_release);
}

void Recorder::State::put_task(const std::string& what, std::int64_t started_ns) const {
  TaskEntry& entry = box.task;
  const std::uint64_t version = entry.version.load(std::memory_order_relaxed) | 1;
  entry.version.store(version, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  entry.started_ns = started_ns;
  put(entry.what, what);
  entry.version.store(version + 1, std::memory_order_release);
}

std::optional<TaskRecord> Recorder::begin_task(const std::string& what) {
  const std::lock_guard lock(state_->mutex);
  auto outer = read_task(state_->box.task);
  state_->put_task(what, now_ns());
  return outer;
}

void Recorder::end_task(const std::optional<TaskRecord>& outer) {
  std::shared_ptr<CallListener> listener;
  std::optional<TaskRecord> ended;
  {
    const std::lock_guard lock(state_->mutex);
    listener = state_->listener.lock();
    if (listener) ended = read_task(state_->box.task);
    state_->put_task(outer ? outer->what : "", outer ? outer->started_ns : 0);
  }
  if (ended) listener->task_ended(ended->what, ended->started_ns, now_ns());
}

std::optional<TaskRecord> Recorder::task() const {
  const std::lock_guard lock(state_->mutex);
  return read_task(state_->box.task);
}

void Recorder::end(std::uint64_t ticket, bool failed, std::int64_t done_ns, std::int64_t blocked_ns) {
  std::shared_ptr<CallListener> listener;
  std::optional<CallRecord> ended;
  {
    const std::lock_guard lock(state_->mutex);
    CallEntry& entry = state_->entry(ticket);
    if (entry.ticket != ticket) return;  // overwritten since
    const std::uint64_t version = entry.version.load(std::memory_order_relaxed) | 1;
    entry.version.store(version, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    entry.state = static_cast<std::uint8_t>(failed ? CallState::kFailed : CallState::kDone);
    entry.ended_ns = now_ns();
    entry.version.store(version + 1, std::memory_order_release);
    listener = state_->listener.lock();
    if (listener) {
      ended = read_entry(state_->box, entry);
    } else {
      state_->heard.store(false, std::memory_order_relaxed);
    }
  }
  // Without the lock, so that other threads do not wait for the listener.
  if (!ended) return;
  listener->call_ended(*ended, done_ns == 0 ? ended->ended_ns : std::min(done_ns, ended->ended_ns), blocked_ns);
}

bool Recorder::listen(const std::shared_ptr<CallListener>& listener) {
  const std::lock_guard lock(state_->mutex);
  if (!state_->listener.expired()) return false;
  state_->listener = listener;
  state_->heard.store(true, std::memory_order_relaxed);
  return true;
}

bool Recorder::is_heard() const { return state_->heard.load(std::memory_order_relaxed); }

Snapshot Recorder::snapshot() const {
  const std::lock_guard lock(state_->mutex);
  return read_box(state_->box);
}

std::optional<CallRecord> Recorder::oldest_under_way() const {
  const std::lock_guard lock(state_->mutex);
  const std::uint64_t newest = state_->box.next_ticket.load(std::memory_order_relaxed);
  std::uint64_t& oldest = state_->oldest;
  oldest = std::max(oldest, newest >= kCapacity ? newest - kCapacity + 1 : 1);
  const auto is_under_way = [this](std::uint64_t ticket) {
    const CallEntry& entry = state_->entry(ticket);
    return entry.ticket == ticket && entry.state == static_cast<std::uint8_t>(CallState::kStarted);
  };
  while (oldest <= newest && !is_under_way(oldest)) ++oldest;
  std::optional<CallRecord> found;
  for (std::uint64_t ticket = oldest; ticket <= newest; ++ticket) {
    if (!is_under_way(ticket)) continue;
    auto call = read_entry(state_->box, state_->entry(ticket));
    if (!call || !is_waited_in(*call)) continue;
    if (!found || waits_since(*call) < waits_since(*found)) found = std::move(call);
  }
  return found;
}

BlackBox::BlackBox() : descriptor_(memfd_create("tessera_black_box", MFD_CLOEXEC)) {
  if (descriptor_ < 0 || ftruncate(descriptor_, sizeof(Box)) != 0) {
    if (descriptor_ >= 0) close(descriptor_);
    throw StorageError(std::string("no memory for a rank's black box: ") + std::strerror(errno));
  }
  box_ = map_box(descriptor_);
}

BlackBox::~BlackBox() {
  if (box_ != nullptr) munmap(box_, sizeof(Box));
  if (descriptor_ >= 0) close(descriptor_);
}

BlackBox::BlackBox(BlackBox&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), box_(std::exchange(other.box_, nullptr)) {}

std::string BlackBox::path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(descriptor_);
}

std::optional<Snapshot> read_black_box(const std::string& path) {
  try {
    Box* box = open_box(path);
    const bool introduced = box->magic.load(std::memory_order_acquire) == kBoxMagic;
    const auto snapshot = introduced ? std::optional(read_box(*box)) : std::nullopt;
    munmap(box, sizeof(Box));
    return snapshot;
  } catch (const StorageError&) {
    return std::nullopt;
  }
}

std::optional<Snapshot> BlackBox::read() const {
  if (box_->magic.load(std::memory_order_acquire) != kBoxMagic) return std::nullopt;
  return read_box(*box_);
}

}  // namespace tessera::flight
