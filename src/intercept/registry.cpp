#include "intercept/registry.h"

#include <ATen/core/function_schema.h>

#include <algorithm>
#include <utility>

namespace tessera::intercept {
namespace {

using Table = Registry::Table;

/// What a thread knows, in one place: every operator looks here first.
///
/// Note [What an operator pays]
/// Each thread keeps the table that it saw last and compares one counter, so an operator takes no lock and counts no
/// references. Nothing is asked of LibTorch, or allocated, before a tensor is found in the table.
struct View {
  const Table* table = nullptr;
  std::uint64_t version = 0;
  bool is_deaf = false;  // in a listener, whose operators must not call it again, or at the end of the thread
};
constinit thread_local View view;

/// Keeps the table of the thread's view. Operators may run on a thread that is ending, after this has gone.
struct KeptTable {
  KeptTable() = default;
  ~KeptTable() { view.is_deaf = true; }
  KeptTable(const KeptTable&) = delete;
  KeptTable& operator=(const KeptTable&) = delete;

  std::shared_ptr<const Table> table;
};

void renew_view() {
  thread_local KeptTable kept;
  const Registry& registry = Registry::of_process();
  view.version = registry.version();
  kept.table = registry.table();  // this one or a newer one, which will then be taken twice
  view.table = kept.table.get();
}

struct ListenerScope {
  ListenerScope() { view.is_deaf = true; }
  ~ListenerScope() { view.is_deaf = false; }
  ListenerScope(const ListenerScope&) = delete;
  ListenerScope& operator=(const ListenerScope&) = delete;
};

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

bool holds(const auto& entry, const c10::StorageImpl* storage) {
  return std::any_of(entry.tensors.begin(), entry.tensors.end(),
                     [storage](const at::Tensor& tensor) { return storage_of(tensor) == storage; });
}

/// Who is to be told when an operator has ended.
struct Uses : at::ObserverContext {
  std::vector<std::shared_ptr<Listener>> listeners;
};

/// An operator that is about to run.
class Operator {
 public:
  Operator(const Table& table, const at::RecordFunction& function) : table_(table), function_(function) {}

  void report_inputs() {
    const auto inputs = function_.inputs();
    for (input_ = 0; input_ < inputs.size(); ++input_) report(inputs[input_]);
  }
  std::unique_ptr<Uses> take_uses() { return std::move(uses_); }

 private:
  void report(const c10::IValue& input) {
    if (input.isTensor()) {
      report(input.toTensor());
    } else if (input.isList()) {
      for (const c10::IValue& element : input.toListRef()) {
        // What is not a list of tensors shows it in its first element; one of optional tensors may have gaps.
        if (element.isTensor()) {
          report(element.toTensor());
        } else if (!element.isNone()) {
          break;
        }
      }
    }
  }

  void report(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto same = table_.by_tensor.find(tensor.unsafeGetTensorImpl());
    for (const Table::Place& place : same) tell(place, tensor);
    if (!same.empty()) return;
    const c10::StorageImpl* storage = storage_of(tensor);
    for (const Table::Place& place : table_.by_storage.find(storage)) {
      // The watched tensors may have left this storage to another one's use.
      if (holds(*place.entry, storage)) tell(place, tensor);
    }
  }

  void tell(const Table::Place& place, const at::Tensor& tensor) {
    if (!place.entry->active.load(std::memory_order_relaxed)) return;
    if (place.entry->interest == Interest::kWrites && !writes()) return;
    auto listener = place.entry->listener.lock();
    if (!listener) return;
    const ListenerScope scope;
    listener->on_use(tensor, function_.name());
    if (place.entry->interest != Interest::kUsesAndEnds) return;
    if (!uses_) uses_ = std::make_unique<Uses>();
    uses_->listeners.push_back(std::move(listener));
  }

  /// Whether the input at hand is changed. Copies the schema: only for those who ask.
  bool writes() const {
    const auto schema = function_.operator_schema();
    // Without a schema nothing is known, so the worst is assumed.
    if (!schema || input_ >= schema->arguments().size()) return true;
    const auto* alias = schema->arguments()[input_].alias_info();
    return alias != nullptr && alias->isWrite();
  }

  const Table& table_;
  const at::RecordFunction& function_;
  std::size_t input_ = 0;
  std::unique_ptr<Uses> uses_;
};

void report_to_all(const Table& table, const at::RecordFunction& function) {
  const ListenerScope scope;
  for (const auto& entry : table.every_operator) {
    if (!entry->active.load(std::memory_order_relaxed)) continue;
    if (const auto listener = entry->listener.lock()) listener->on_operator(function.name());
  }
}

std::unique_ptr<at::ObserverContext> before_operator(const at::RecordFunction& function) {
  if (view.is_deaf) return nullptr;
  if (view.version != Registry::of_process().version()) renew_view();
  // A listener may end its watch; the table stays, because this thread takes no other one meanwhile.
  const Table& table = *view.table;
  if (!table.every_operator.empty()) report_to_all(table, function);
  Operator now(table, function);
  now.report_inputs();
  return now.take_uses();
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

std::shared_ptr<const Registry::Table> Registry::table() const {
  const std::lock_guard lock(mutex_);
  return table_;
}

void Registry::publish() {
  auto table = std::make_shared<Table>();
  std::vector<std::pair<const void*, Table::Place>> storages;
  std::vector<std::pair<const void*, Table::Place>> tensors;
  for (const auto& entry : entries_) {
    for (std::size_t i = 0; i < entry->tensors.size(); ++i) {
      tensors.emplace_back(entry->tensors[i].unsafeGetTensorImpl(), Table::Place{entry});
      // Once, however many of the watch's tensors lie there: a use is told of once.
      const c10::StorageImpl* storage = storage_of(entry->tensors[i]);
      const auto is_same = [&](const auto& at) { return at.first == storage && at.second.entry == entry; };
      if (std::none_of(storages.begin(), storages.end(), is_same)) storages.emplace_back(storage, Table::Place{entry});
    }
    if (entry->interest == Interest::kUsesAndEveryOperator) table->every_operator.push_back(entry);
  }
  table->by_storage = PointerIndex<Table::Place>(std::move(storages));
  table->by_tensor = PointerIndex<Table::Place>(std::move(tensors));
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
