#pragma once

#include <tessera/store/secret.h>

#include <optional>
#include <string>

#include "comm/launch_environment.h"

namespace tessera::comm {

/// The secret that this job was given: TESSERA_SECRET, which a launcher sets for this very job, or else the file that
/// `secret_file` names, or else the one that TESSERA_SECRET_FILE does. Nothing when there is none of them.
/// Throws ConfigError when what was given is no secret, or one that others can read.
std::optional<store::Secret> given_secret(const GetVariable& get, const std::string& secret_file);

/// What to do about a missing secret, for messages.
std::string how_to_give_a_secret();

}  // namespace tessera::comm
