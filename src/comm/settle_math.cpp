#include <tessera/comm/settle_math.h>

#include <ATen/ATen.h>

#include <mutex>

namespace tessera {

// Note [The first call of a vector function]
// LibTorch computes sin, exp, log and others by MKL's vector functions, whose first call looks which CPU this is. MKL
// notes what it finds in two steps: a number of the CPU, then the column of its tables that this stands for. A thread
// whose first call comes between the two picks a kernel of the lowest accuracy: sin of doubles is wrong by 7e-9, in
// this call alone (pytorch/pytorch#188792). Ranks that are threads begin together, as do the threads of one operator,
// and a run in which it happens cannot be repeated bit by bit. All vector functions share the note, so one call of one
// of them settles it.
void settle_math() {
  static std::once_flag once;
  std::call_once(once, [] { at::sin(at::zeros({1}, at::kDouble)); });
}

}  // namespace tessera
