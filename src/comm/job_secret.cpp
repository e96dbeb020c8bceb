#include "comm/job_secret.h"

#include <tessera/core/error.h>

namespace tessera::comm {

std::optional<store::Secret> given_secret(const GetVariable& get, const std::string& secret_file) {
  if (const auto digits = get("TESSERA_SECRET")) {
    try {
      return store::Secret::from_hex(*digits);
    } catch (const ConfigError& error) {
      throw ConfigError(std::string("the variable TESSERA_SECRET: ") + error.what());
    }
  }
  const std::string path = !secret_file.empty() ? secret_file : get("TESSERA_SECRET_FILE").value_or("");
  if (path.empty()) return std::nullopt;
  return store::Secret::from_file(path);
}

std::string how_to_give_a_secret() {
  return "make a secret with `tessera secret FILE`, put the file where every rank can read it, and set "
         "TESSERA_SECRET_FILE to its path for all of them; or start the job with `tessera run`, which does it all";
}

}  // namespace tessera::comm
