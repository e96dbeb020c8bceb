#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace tessera::observe {

/// A thread that no signal comes to: the program's handlers run on the program's own threads. `name`, of at most 15
/// characters, is what `top -H` shows.
template <typename Body>
std::thread start_quiet_thread(const char* name, Body body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(std::move(body));
    pthread_setname_np(thread.native_handle(), name);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

}  // namespace tessera::observe
