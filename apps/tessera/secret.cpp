// tessera secret: the key of a job of several nodes.
#include <tessera/core/error.h>
#include <tessera/store/secret.h>

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "tessera/commands.h"

namespace tessera::app {
namespace {

void write_secret(const std::string& path, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0 && errno == EEXIST) {
    throw ConfigError(path + " exists, and is not overwritten: jobs may be using it. Name another file, or remove it");
  }
  if (file < 0) throw StorageError(path + " cannot be made: " + std::strerror(errno));
  const ssize_t written = write(file, text.data(), text.size());
  const int fault = errno;
  if (close(file) == 0 && written == static_cast<ssize_t>(text.size())) return;
  unlink(path.c_str());
  throw StorageError(path + " cannot be written: " + std::strerror(fault));
}

}  // namespace

void add_secret(CLI::App& app) {
  CLI::App& command = *app.add_subcommand("secret", "Make the key that the nodes of a job prove to each other");
  const auto path = std::make_shared<std::string>();
  command.add_option("FILE", *path, "A new file, readable by you alone; without it the key is printed");
  command.callback([path] {
    const std::string text = store::Secret::mint().hex() + "\n";
    if (path->empty()) {
      std::fputs(text.c_str(), stdout);
    } else {
      write_secret(*path, text);
    }
  });
}

}  // namespace tessera::app
