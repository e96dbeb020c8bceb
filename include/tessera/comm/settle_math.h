#pragma once

namespace tessera {

/// Lets LibTorch's mathematical functions find out on which CPU they are, before threads do it together: see the note
/// in the source. Every world is made with it; whoever starts threads that compute without a world calls it first.
/// Thread-safety: all threads. Blocks: until it is done, the first time.
void settle_math();

}  // namespace tessera
