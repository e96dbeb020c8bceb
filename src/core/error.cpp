#include <tessera/core/error.h>

namespace tessera {

int exit_code(const std::exception& error) {
  if (dynamic_cast<const ConfigError*>(&error)) {
    return 2;
  }
  if (dynamic_cast<const CommError*>(&error)) {
    return 3;
  }
  if (dynamic_cast<const StorageError*>(&error)) {
    return 4;
  }
  if (dynamic_cast<const InternalError*>(&error)) {
    return 70;
  }
  return 1;
}

}  // namespace tessera
