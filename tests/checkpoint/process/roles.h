#pragma once

#include "support/process_roles.h"

namespace tessera::testing {

/// Each step whose number it divides is saved twice by save_until_killed().
inline constexpr int kTwiceEvery = 3;

/// ROOT SOCKET MODE [REFUSED]: saves step after step into ROOT, some of them twice, in the background when MODE is
/// "asynchronous", without the call REFUSED. Begins with the newest step that it finds, and tells the test at SOCKET
/// what it loads and saves.
void save_until_killed(const Arguments& arguments);

/// ROOT REFUSAL: saves where the kernel refuses what makes saves fast, or safe in one call.
void save_without_a_call(const Arguments& arguments);

/// FOLDER: alone in namespaces of its own, where FOLDER is a small disk, runs the jobs below.
void run_on_own_disk(const Arguments& arguments);
/// FOLDER TROUBLE MODE: trains and saves there while the disk has the trouble, and after it.
void train_in_trouble(const Arguments& arguments);

}  // namespace tessera::testing
