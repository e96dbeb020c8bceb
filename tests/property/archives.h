#pragma once

#include <c10/core/impl/VirtualGuardImpl.h>

#include <mutex>
#include <sstream>
#include <string>

#include <torch/serialize.h>

namespace tessera::testing {

/// LibTorch's archives fill tables of their own: one thread at a time. Who waits for the lock launches nothing, so who
/// has it must not wait for what other ranks have yet to launch, as copies behind a collective do: this waits for the
/// rank's device first.
inline std::unique_lock<std::mutex> lock_archives() {
  static std::mutex mutex;
  constexpr auto kDevice = c10::DeviceType::PrivateUse1;
  if (c10::impl::hasDeviceGuardImpl(kDevice)) {
    const c10::impl::VirtualGuardImpl guard(kDevice);
    guard.synchronizeDevice(guard.getDevice().index());
  }
  return std::unique_lock(mutex);
}

/// What torch::save writes of a model or an optimizer.
template <class T>
std::string saved(const T& object) {
  const auto lock = lock_archives();
  std::ostringstream file;
  torch::serialize::OutputArchive archive;
  object.save(archive);
  archive.save_to(file);
  return file.str();
}

template <class T>
void load_into(T& object, const std::string& bytes) {
  std::istringstream file(bytes);
  torch::serialize::InputArchive archive;
  {
    const auto lock = lock_archives();
    archive.load_from(file);
  }
  object.load(archive);  // may talk to the other ranks
}

}  // namespace tessera::testing
