#pragma once

#include <mutex>
#include <sstream>
#include <string>

#include <torch/serialize.h>

namespace tessera::testing {

/// LibTorch's archives fill tables of their own: one thread at a time.
inline std::mutex& archive_mutex() {
  static std::mutex mutex;
  return mutex;
}

/// What torch::save writes of a model or an optimizer.
template <class T>
std::string saved(const T& object) {
  const std::lock_guard lock(archive_mutex());
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
    const std::lock_guard lock(archive_mutex());
    archive.load_from(file);
  }
  object.load(archive);  // may talk to the other ranks
}

}  // namespace tessera::testing
