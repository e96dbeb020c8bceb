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
      // The reducer and its default hook run on the autograd thread of a rank and hand buckets over under LibTorch's
      // own locks.
      "race:c10d::Reducer\n"
      "race:c10d::_AllReduceBySumCommHook\n"
      // Frames inside LibTorch are often lost from the stacks of the above; what remains are the tests that call it.
      "race:reducer_threads_test.cpp\n"
      "race:reducer_case.cpp\n";
}
