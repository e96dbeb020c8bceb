#include <tessera/intercept/watch.h>

#include <utility>

#include "intercept/registry.h"

namespace tessera::intercept {

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
