#pragma once

#include <tessera/comm/communicator.h>

#include <string>
#include <vector>

namespace tessera {

/// Returns `root`'s text on every rank; `text` of the other ranks is ignored. Collective: over `comm`.
std::string broadcast_text(const Communicator& comm, const std::string& text, int root);
/// The texts of all ranks, of any lengths, on every rank. Collective: over `comm`.
std::vector<std::string> all_gather_texts(const Communicator& comm, const std::string& text);
/// The first of the ranks' texts that is not empty, after its rank: "rank 3: the disk is full". Empty when all are.
std::string first_report(const std::vector<std::string>& texts);

}  // namespace tessera
