#include "intercept/registry.h"

#include <ATen/core/function_schema.h>

#include <algorithm>
#include <string_view>

namespace tessera::intercept {
namespace {

using Table = Registry::Table;

/// The operators that a listener calls must not call it again.
thread_local bool inside_listener = false;

struct ListenerScope {
  ListenerScope() { inside_listener = true; }
  ~ListenerScope() { inside_listener = false; }
  ListenerScope(const ListenerScope&) = delete;
  ListenerScope& operator=(const ListenerScope&) = delete;
};

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

/// Who is to be told when an operator has ended.
struct Uses : at::ObserverContext {
  std::vector<std::shared_ptr<Listener>> listeners;
};

/// An operator that is about to run.
struct Operator {
  const at::RecordFunction& function;
  std::string_view name;
  std::unique_ptr<Uses> uses;

  /// Copies the schema: only for those who ask.
  bool writes(std::size_t input) const {
    const auto schema = function.operator_schema();
    // Without a schema nothing is known, so the worst is assumed.
    if (!schema || input >= schema->arguments().size()) return true;
    const auto* alias = schema->arguments()[input].alias_info();
    return alias != nullptr && alias->isWrite();
  }
};

void report_use(const Table& table, const at::Tensor& tensor, std::size_t input, Operator& op) {
  if (!tensor.defined()) return;
  const auto tell = [&](const Table::Place& place) {
    if (!place.entry->active.load(std::memory_order_relaxed)) return;
    if (place.entry->interest == Interest::kWrites && !op.writes(input)) return;
    auto listener = place.entry->listener.lock();
    if (!listener) return;
    listener->on_use(tensor, op.name);
    if (place.entry->interest != Interest::kUsesAndEnds) return;
    if (!op.uses) op.uses = std::make_unique<Uses>();
    op.uses->listeners.push_back(std::move(listener));
  };
  const auto [same, end_of_same] = table.by_tensor.equal_range(tensor.unsafeGetTensorImpl());
  for (auto found = same; found != end_of_same; ++found) tell(found->second);
  if (same != end_of_same) return;
  const c10::StorageImpl* storage = storage_of(tensor);
  const auto [views, end_of_views] = table.by_storage.equal_range(storage);
  for (auto found = views; found != end_of_views; ++found) {
    // The watched tensor may have left this storage to another one's use.
    const Table::Place& place = found->second;
    if (storage_of(place.entry->tensors[place.index]) == storage) tell(place);
  }
}

void report_input(const Table& table, std::size_t number, Operator& op) {
  const c10::IValue& input = op.function.inputs()[number];
  if (input.isTensor()) {
    report_use(table, input.toTensor(), number, op);
  } else if (input.isTensorList() || input.isOptionalTensorList()) {
    for (const c10::IValue& element : input.toListRef()) {
      if (element.isTensor()) report_use(table, element.toTensor(), number, op);
    }
  }
}

std::unique_ptr<at::ObserverContext> before_operator(const at::RecordFunction& function) {
  if (inside_listener) return nullptr;
  const ListenerScope scope;
  // A copy: a listener may end its watch, and the table with it.
  const std::shared_ptr<const Table> table = Registry::of_process().table();
  const std::string_view name = function.name();
  for (const auto& entry : table->every_operator) {
    if (!entry->active.load(std::memory_order_relaxed)) continue;
    if (const auto listener = entry->listener.lock()) listener->on_operator(name);
  }
  Operator op{function, name, nullptr};
  for (std::size_t i = 0; i < function.inputs().size(); ++i) report_input(*table, i, op);
  return std::move(op.uses);
}

void after_operator(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
  if (!context) return;
  const ListenerScope scope;
  for (const auto& listener : static_cast<Uses*>(context)->listeners) listener->on_done();
}

}  // namespace

Registry& Registry::of_process() {
  static auto* const registry = new Registry;  // never destroyed: operators may run while the process ends
  return *registry;
}

void Registry::add(const std::shared_ptr<Watch::Entry>& entry) {
  const std::lock_guard lock(mutex_);
  entries_.push_back(entry);
  publish();
  count_active(1);
}

void Registry::remove(const std::shared_ptr<Watch::Entry>& entry) noexcept {
  const std::lock_guard lock(mutex_);
  if (entry->active.exchange(false)) count_active(-1);
  std::erase(entries_, entry);
  publish();
}

void Registry::set_active(Watch::Entry& entry, bool active) {
  if (entry.active.load(std::memory_order_relaxed) == active) return;
  const std::lock_guard lock(mutex_);
  if (entry.active.exchange(active) != active) count_active(active ? 1 : -1);
}

const std::shared_ptr<const Registry::Table>& Registry::table() const {
  // Each thread keeps the table that it saw last: an operator then costs no lock.
  thread_local std::shared_ptr<const Table> seen;
  thread_local std::uint64_t seen_version = 0;
  if (!seen || seen_version != version_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(mutex_);
    seen = table_;
    seen_version = version_.load(std::memory_order_relaxed);
  }
  return seen;
}

void Registry::publish() {
  auto table = std::make_shared<Table>();
  for (const auto& entry : entries_) {
    for (std::size_t i = 0; i < entry->tensors.size(); ++i) {
      table->by_tensor.emplace(entry->tensors[i].unsafeGetTensorImpl(), Table::Place{entry, i});
      table->by_storage.emplace(storage_of(entry->tensors[i]), Table::Place{entry, i});
    }
    if (entry->interest == Interest::kUsesAndEveryOperator) table->every_operator.push_back(entry);
  }
  table_ = std::move(table);
  version_.fetch_add(1, std::memory_order_release);
}

void Registry::count_active(int change) {
  num_active_ += change;
  if (callback_ == at::INVALID_CALLBACK_HANDLE) {
    callback_ = at::addGlobalCallback(at::RecordFunctionCallback(&before_operator, &after_operator)
                                          .needsInputs(true)
                                          .scopes({at::RecordScope::FUNCTION}));
  } else if (change > 0 && num_active_ == 1) {
    at::reenableCallback(callback_);
  } else if (change < 0 && num_active_ == 0) {
    at::disableCallback(callback_);
  }
}

}  // namespace tessera::intercept
