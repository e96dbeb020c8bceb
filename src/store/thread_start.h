#pragma once

#include <csignal>
#include <functional>
#include <thread>
#include <utility>

namespace tessera::store {

/// A thread that takes no signals: they are for the threads of the program, which may wait for them.
inline std::thread start_without_signals(std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace tessera::store
