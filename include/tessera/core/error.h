#pragma once

#include <stdexcept>
#include <string>

namespace tessera {

/// The root of everything Tessera throws. A message says what was expected, what was found, on which rank (where one
/// is known) and what to do.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller asked for something that cannot be: a wrong option, shape or layout. Fix the program or its settings.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// A peer, a connection or a deadline failed. The group is unusable; the job may be restarted.
class CommError : public Error {
 public:
  using Error::Error;
};

/// A file or a disk failed.
class StorageError : public Error {
 public:
  using Error::Error;
};

/// A fault of Tessera's own. Please report it.
class InternalError : public Error {
 public:
  using Error::Error;
};

/// The exit code of a Tessera program that ends with `error`: 2 for ConfigError, 3 for CommError, 4 for StorageError,
/// 70 for InternalError, 1 for anything else.
int exit_code(const std::exception& error);

}  // namespace tessera
