#pragma once

#include <exception>
#include <string>

#include "property/action.h"

namespace tessera::testing {

/// What has happened in a program that a refusal may stand on.
struct Circumstances {
  bool flags_changed = false;  ///< parameters were frozen or unfrozen
  bool is_whole = false;       ///< inside gather()
  bool has_moved = false;      ///< parameters were given other memory
};

/// Whether these are our words, and not LibTorch's.
bool is_refusal(const std::exception& error);
/// Whether what the text says may be said to this action: why not, or "".
std::string objection_to(const std::string& text, const Action& action, const Config& config,
                         const Circumstances& circumstances);

/// Whether a random cut of a random model into stages may be refused in these words.
bool is_refused_cut(const std::string& text);

}  // namespace tessera::testing
