#pragma once

#include <tessera/comm/communicator.h>

#include <string>
#include <vector>

namespace tessera {

/// `root`'s text on every rank; what the others give is not looked at. Collective: over `comm`.
std::string broadcast_text(const Communicator& comm, const std::string& text, int root);
/// The texts of all ranks, of any lengths, on every rank. Collective: over `comm`.
std::vector<std::string> all_gather_texts(const Communicator& comm, const std::string& text);

}  // namespace tessera
