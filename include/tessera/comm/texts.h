#pragma once

#include <tessera/comm/communicator.h>

#include <string>
#include <vector>

namespace tessera {

/// `root`'s text on every rank; what the others give is not looked at. Collective: over `comm`.
std::string broadcast_text(const Communicator& comm, const std::string& text, int root);
/// The texts of all ranks, of any lengths, on every rank. Collective: over `comm`.
std::vector<std::string> all_gather_texts(const Communicator& comm, const std::string& text);
/// Of what the ranks report, in their order, the first that is not empty: "rank 3: the disk is full".
std::string first_report(const std::vector<std::string>& texts);

}  // namespace tessera
