#pragma once

namespace tessera {

/// Makes LibTorch's mathematical functions detect the CPU now, before several threads do it at once: see the note in
/// the source. Making a world calls it. Code that starts computing threads without a world must call it first.
/// Thread-safety: all threads. Blocks: until it is done, the first time.
void settle_math();

}  // namespace tessera
