// What ThreadSanitizer cannot see inside LibTorch, which is not instrumented. Compiled into the tests, so that they are
// judged the same way however they are started.
extern "C" const char* __tsan_default_suppressions();   // NOLINT: the sanitizer's own name
extern "C" const char* __tsan_default_suppressions() {  // NOLINT
  return
      // c10::intrusive_ptr counts its owners by atomics. Where LibTorch's own code drops the last owner of a Work or
      // Future, the atomics go unseen, and freeing it seems to race with whoever completed it.
      "race:c10::intrusive_ptr\n"
      "race:c10::detail::intrusive\n"
      "race:c10d::Work\n"
      // The same of tensors. LibTorch keeps one cache of casts for all threads: a rank that leaves autocast clears it,
      // and with it frees what other ranks have cast and used before.
      "race:c10::TensorImpl::~TensorImpl\n"
      // And of those that look at a tensor without owning it, as the marks of slices do.
      "race:c10::weak_intrusive_ptr\n"
      // oneDNN makes its cache of primitives, with the lock in it, as a local static: who finds it made has
      // synchronised by the guard's load, in code that is not instrumented. What the cache holds is compared and used
      // by all threads.
      "race:dnnl::impl::\n"
      // A loop in parallel is on the stack of its caller. The threads of OpenMP are joined by libgomp's own futexes,
      // which go unseen, so that the next call seems to write what they still read.
      "race:at::TensorIteratorBase\n"
      "race:c10::SmallVectorImpl<long>::operator=\n"
      // The reducer and its default hook run on the autograd thread of a rank and hand buckets over under LibTorch's
      // own locks.
      "race:c10d::Reducer\n"
      "race:c10d::_AllReduceBySumCommHook\n"
      // Frames inside LibTorch are often lost from the stacks of the above; what remains are the tests that call it.
      "race:reducer_threads_test.cpp\n"
      "race:reducer_case.cpp\n";
}
