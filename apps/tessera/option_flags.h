#pragma once

#include <tessera/core/config_file.h>
#include <tessera/core/options.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace tessera::app {

/// The flag of a field: `--init-timeout` for the key `init_timeout`.
inline std::string flag_of(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

/// The fields of an options type as flags of a command, besides `--config FILE` and `--print-config`. A flag wins over
/// the file, the file over the default.
template <class T>
class OptionFlags {
 public:
  explicit OptionFlags(CLI::App& command) : given_(std::make_shared<Given>()) {
    for (const Field& field : T::fields().fields()) {
      std::string help = field.help + " [" + field.default_text() + "]";
      command.add_option(flag_of(field.key), given_->texts[field.key], help)->group("Options of " + T::fields().name());
    }
    command.add_option("--config", given_->file, "Read options from this TOML file");
    command.add_flag("--print-config", given_->print, "Print the options as TOML, and end");
  }

  /// The options, once the command line has been parsed. With --print-config prints them and ends the command.
  T resolve() const {
    T options;
    if (!given_->file.empty()) load_config(given_->file, options);
    for (const auto& [key, text] : given_->texts) {
      if (!text.empty()) T::fields().set_text(options, key, text);
    }
    if (given_->print) {
      std::fputs(print_config(options).c_str(), stdout);
      throw CLI::Success();
    }
    return options;
  }

 private:
  struct Given {
    std::map<std::string, std::string> texts;
    std::string file;
    bool print = false;
  };
  std::shared_ptr<Given> given_;
};

}  // namespace tessera::app
