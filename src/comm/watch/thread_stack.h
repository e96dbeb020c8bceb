#pragma once

#include <pthread.h>

#include <chrono>
#include <string>
#include <vector>

namespace tessera::comm {

/// The functions that a thread of this process is in, innermost first, with files and lines where the program has debug
/// information and `addr2line` is installed. Empty when the thread does not answer in time.
///
/// Note [Asking a thread for its stack]
/// The thread is interrupted by a signal (SIGRTMAX - 3, which a program can hardly use by accident) whose handler walks
/// its stack. System calls that it interrupts are restarted.
std::vector<std::string> stack_of(pthread_t thread, std::chrono::milliseconds timeout);

/// Installs the handler, unless the program has one for that signal. Call it before the first `stack_of`: it also
/// loads the library that walks a stack, which a signal handler must not do.
void prepare_stacks();

}  // namespace tessera::comm
