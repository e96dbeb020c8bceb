#include "intercept/registry.h"

#include <tessera/intercept/watch.h>

#include <ATen/core/function_schema.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "intercept/schema.h"

namespace tessera::intercept {
namespace {

using Table = Registry::Table;

/// A thread's view of the registry. Every operator reads it first.
///
/// Note [What an operator pays]
/// Each thread keeps the table that it used last and compares one counter, so an operator takes no lock and changes no
/// reference count. LibTorch is not called, and nothing is allocated, before a tensor is found in the table.
struct View {
  const Table* table = nullptr;
  std::uint64_t version = 0;
  bool is_deaf = false;  // operators are not reported: inside a listener, and at the end of the thread
  bool hears_uses = true;
};
constinit thread_local View view;

/// Owns the table of the thread's view. Operators may run on an ending thread after this object is destroyed.
struct KeptTable {
  KeptTable() = default;
  ~KeptTable() { view.is_deaf = true; }
  KeptTable(const KeptTable&) = delete;
  KeptTable& operator=(const KeptTable&) = delete;

  std::shared_ptr<const Table> table;
};

void renew_view() {
  thread_local KeptTable kept;
  Registry& registry = Registry::of_process();
  view.version = registry.version();
  kept.table = registry.table();  // of that version or a newer one; if newer, it will be fetched again
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

/// The listeners to notify when an operator has ended.
struct Uses : at::ObserverContext {
  std::vector<std::shared_ptr<Listener>> listeners;
};

/// Which inputs an operator changes, one bit each.
///
/// Note [What an operator writes]
/// The schema says which inputs are written, but LibTorch returns a copy of the schema, which costs more than many
/// operators. So each thread caches the result by the address of the name, which lies in the schema; each overload has
/// its own schema.
std::uint64_t written_inputs(const at::RecordFunction& function) {
  thread_local std::unordered_map<const char*, std::uint64_t> known;
  const auto found = known.find(function.name());
  if (found != known.end()) return found->second;
  const auto schema = function.operator_schema();
  // Without a schema, and for inputs beyond the 64 bits, assume that the input is written.
  std::uint64_t written = ~std::uint64_t{0};
  // "detach" is the record that detach() makes inside itself.
  if (!schema) return std::string_view(function.name()) == "detach" ? 0 : written;
  for (std::size_t i = 0; i < std::min<std::size_t>(schema->arguments().size(), 64); ++i) {
    if (!writes_argument(*schema, i)) written &= ~(std::uint64_t{1} << i);
  }
  known.emplace(function.name(), written);
  return written;
}

/// An operator that is about to run.
class Operator : private Use {
 public:
  Operator(const Table& table, const at::RecordFunction& function) : table_(table), function_(function) {}

  void report_inputs() {
    const auto inputs = function_.inputs();
    for (input_ = 0; input_ < inputs.size(); ++input_) report(inputs[input_]);
  }
  std::unique_ptr<Uses> take_uses() { return std::move(uses_); }

 private:
  const at::Tensor& tensor() const override { return *tensor_; }
  std::string_view operator_name() const override { return function_.name(); }
  const at::Tensor& input(std::size_t index) const override { return function_.inputs()[index].toTensor(); }
  bool writes() const override { return input_ >= 64 || (written_inputs(function_) >> input_ & 1) != 0; }

  void report(const c10::IValue& input) {
    if (input.isTensor()) {
      report(input.toTensor());
    } else if (input.isList()) {
      for (const c10::IValue& element : input.toListRef()) {
        // The first element shows whether it is a list of tensors; a list of optional tensors may have gaps.
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
    tensor_ = &tensor;
    const auto same = table_.by_tensor.find(tensor.unsafeGetTensorImpl());
    for (const Table::Place& place : same) notify(place);
    const c10::StorageImpl* storage = storage_of(tensor);
    for (const Table::Place& place : table_.by_storage.find(storage)) {
      const bool is_notified =
          std::any_of(same.begin(), same.end(), [&](const Table::Place& other) { return other.entry == place.entry; });
      // The watched tensors may have got other storages, and this one may now be used by another tensor.
      if (!is_notified && place.entry->holds(storage)) notify(place);
    }
  }

  void notify(const Table::Place& place) {
    const Interest interest = place.entry->interest;
    if (!place.entry->active.load(std::memory_order_relaxed)) return;
    if (interest == Interest::kWritesAndEnds && !writes()) return;
    auto listener = place.entry->listener.lock();
    if (!listener) return;
    const ListenerScope scope;
    listener->on_use(*this);
    if (interest != Interest::kUsesAndEnds && interest != Interest::kWritesAndEnds) return;
    if (!uses_) uses_ = std::make_unique<Uses>();
    uses_->listeners.push_back(std::move(listener));
  }

  const Table& table_;
  const at::RecordFunction& function_;
  std::size_t input_ = 0;
  const at::Tensor* tensor_ = nullptr;
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
  // A listener may end its watch; the table stays valid, because this thread renews its view only above.
  const Table& table = *view.table;
  if (!table.every_operator.empty()) report_to_all(table, function);
  if (!view.hears_uses) return nullptr;
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

UseReports::UseReports(bool are_on) : before_(std::exchange(view.hears_uses, are_on)) {}
UseReports::~UseReports() { view.hears_uses = before_; }

bool Watch::Entry::holds(const c10::StorageImpl* storage) const {
  const std::lock_guard lock(mutex);
  return std::any_of(tensors.begin(), tensors.end(),
                     [storage](const at::Tensor& tensor) { return storage_of(tensor) == storage; });
}

Registry& Registry::of_process() {
  static auto* const registry = new Registry;  // never destroyed: operators may run while the process ends
  return *registry;
}

void Registry::add(const std::shared_ptr<Watch::Entry>& entry) {
  const std::lock_guard lock(mutex_);
  entries_.push_back(entry);
  change();
  count_active(1);
}

void Registry::remove(const std::shared_ptr<Watch::Entry>& entry) noexcept {
  std::vector<at::Tensor> tensors;  // destroyed after the locks are released, since that may run arbitrary code
  const std::lock_guard lock(mutex_);
  if (entry->active.exchange(false)) count_active(-1);
  std::erase(entries_, entry);
  change();
  const std::lock_guard entry_lock(entry->mutex);
  tensors.swap(entry->tensors);
}

void Registry::set_active(Watch::Entry& entry, bool active) {
  if (entry.active.load(std::memory_order_relaxed) == active) return;
  const std::lock_guard lock(mutex_);
  if (entry.active.exchange(active) != active) count_active(active ? 1 : -1);
}

std::shared_ptr<const Registry::Table> Registry::table() {
  const std::lock_guard lock(mutex_);
  if (!table_) table_ = make_table();
  return table_;
}

void Registry::change() {
  table_ = nullptr;
  version_.fetch_add(1, std::memory_order_release);
}

std::shared_ptr<const Registry::Table> Registry::make_table() const {
  auto table = std::make_shared<Table>();
  std::vector<std::pair<const void*, Table::Place>> storages;
  std::vector<std::pair<const void*, Table::Place>> tensors;
  for (const auto& entry : entries_) {
    std::set<const c10::StorageImpl*> of_entry;
    for (const at::Tensor& tensor : entry->tensors) {
      tensors.emplace_back(tensor.unsafeGetTensorImpl(), Table::Place{entry});
      of_entry.insert(storage_of(tensor));
    }
    // Once, however many of the watch's tensors lie in the storage, so that a use is reported once.
    for (const c10::StorageImpl* storage : of_entry) storages.emplace_back(storage, Table::Place{entry});
    if (entry->interest == Interest::kUsesAndEveryOperator) table->every_operator.push_back(entry);
  }
  table->by_storage = PointerIndex<Table::Place>(std::move(storages));
  table->by_tensor = PointerIndex<Table::Place>(std::move(tensors));
  return table;
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

Watch::Watch(const std::vector<at::Tensor>& tensors, std::weak_ptr<Listener> listener, Interest interest)
    : entry_(std::make_shared<Entry>(tensors, std::move(listener), interest)) {
  Registry::of_process().add(entry_);
}

Watch::~Watch() { close(); }

Watch::Watch(Watch&& other) noexcept : entry_(std::exchange(other.entry_, nullptr)) {}

Watch& Watch::operator=(Watch&& other) noexcept {
  if (this != &other) {
    close();
    entry_ = std::exchange(other.entry_, nullptr);
  }
  return *this;
}

void Watch::close() noexcept {
  if (entry_) Registry::of_process().remove(entry_);
  entry_ = nullptr;
}

void Watch::pause() {
  if (entry_) Registry::of_process().set_active(*entry_, false);
}

void Watch::resume() {
  if (entry_) Registry::of_process().set_active(*entry_, true);
}

}  // namespace tessera::intercept
