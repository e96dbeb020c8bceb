#include "support/sim_device/host_threads.h"

#include <dlfcn.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <new>
#include <thread>
#include <unordered_map>

// Note [Host threads that learn]
// One thread waits for a stream and hands over to another, which launches on a second stream: that is in order, and the
// checker must know it, or it would complain. It must not take for order what is none, so it cannot have one clock for
// all threads. The functions of pthreads are therefore wrapped: who unlocks a mutex leaves in it what he knows, and who
// locks it learns that. A definition in the program comes before the C library's for all libraries.
//
// A mutex has always what its last owner knew, and who locks it knows that too: so unlocking replaces it. What is known
// is shared and never changed, and mostly there is nothing new to learn, which two pointers tell.

namespace tessera::testing::sim {
namespace {

/// Counted by hand: threads use it after their own thread_local objects are gone.
struct Known {
  Clock clock;
  std::atomic<int> num_owners{1};
};

thread_local Known* t_known = nullptr;
std::atomic<bool> anything_known{false};

Known* shared(Known* known) {
  if (known) known->num_owners.fetch_add(1, std::memory_order_relaxed);
  return known;
}

void release(Known* known) {
  if (known && known->num_owners.fetch_sub(1, std::memory_order_acq_rel) == 1) delete known;
}

void learn(Known* other) {
  if (!other || other == t_known) return;
  if (t_known && t_known->clock.covers(other->clock)) return;
  if (!t_known || other->clock.covers(t_known->clock)) {
    release(t_known);
    t_known = shared(other);
    return;
  }
  auto* both = new Known{t_known->clock};
  both->clock.learn(other->clock);
  release(t_known);
  t_known = both;
}

/// What is left in mutexes, by their address.
class Mutexes {
 public:
  static Mutexes& all() {
    static auto* const instance = new Mutexes;
    return *instance;
  }
  void leave(const void* mutex) {
    if (!t_known) return;
    Shard& shard = shard_of(mutex);
    const Spin spin(shard.busy);
    Known*& place = shard.known[mutex];
    if (place == t_known) return;
    release(place);
    place = shared(t_known);
  }
  void take(const void* mutex) {
    Shard& shard = shard_of(mutex);
    Known* found = nullptr;
    {
      const Spin spin(shard.busy);
      const auto place = shard.known.find(mutex);
      if (place == shard.known.end() || place->second == t_known) return;
      found = shared(place->second);
    }
    learn(found);
    release(found);
  }

 private:
  struct Shard {
    std::atomic_flag busy;
    std::unordered_map<const void*, Known*> known;
  };
  struct Spin {
    explicit Spin(std::atomic_flag& flag) : flag(flag) {
      while (flag.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
    }
    ~Spin() { flag.clear(std::memory_order_release); }
    Spin(const Spin&) = delete;
    Spin& operator=(const Spin&) = delete;
    std::atomic_flag& flag;
  };
  Shard& shard_of(const void* mutex) { return shards_[std::hash<const void*>()(mutex) / 64 % shards_.size()]; }

  std::array<Shard, 128> shards_;
};

void leave_in(const void* mutex) {
  if (anything_known.load(std::memory_order_relaxed)) Mutexes::all().leave(mutex);
}

void learn_from(const void* mutex) {
  if (anything_known.load(std::memory_order_relaxed)) Mutexes::all().take(mutex);
}

template <class Function>
Function real(std::atomic<Function>& place, const char* name, const char* version = nullptr) {
  Function found = place.load(std::memory_order_relaxed);
  if (!found) {
    void* const symbol = version ? dlvsym(RTLD_NEXT, name, version) : dlsym(RTLD_NEXT, name);
    found = reinterpret_cast<Function>(symbol);
    place.store(found, std::memory_order_relaxed);
  }
  return found;
}

struct Started {
  void* (*run)(void*);
  void* argument;
  Known* known;
};

void* run_started(void* argument) {
  const std::unique_ptr<Started> started(static_cast<Started*>(argument));
  t_known = started->known;
  void* const result = started->run(started->argument);
  // For who joins it.
  leave_in(reinterpret_cast<const void*>(pthread_self()));
  return result;
}

}  // namespace

Clock known_to_host() { return t_known ? t_known->clock : Clock(); }

void host_learns(const Clock& clock) {
  if (t_known && t_known->clock.covers(clock)) return;
  auto* both = new Known{t_known ? t_known->clock : Clock()};
  both->clock.learn(clock);
  release(t_known);
  t_known = both;
  anything_known.store(true, std::memory_order_relaxed);
}

namespace {
std::atomic<int (*)(pthread_mutex_t*)> real_lock;
std::atomic<int (*)(pthread_mutex_t*)> real_try_lock;
std::atomic<int (*)(pthread_mutex_t*)> real_unlock;
std::atomic<int (*)(pthread_cond_t*, pthread_mutex_t*)> real_wait;
std::atomic<int (*)(pthread_cond_t*, pthread_mutex_t*, const timespec*)> real_timed_wait;
std::atomic<int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)> real_clock_wait;
std::atomic<int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)> real_create;
std::atomic<int (*)(pthread_t, void**)> real_join;
}  // namespace
}  // namespace tessera::testing::sim

// See Note [Host threads that learn]. The linker knows these by the C library's names.
namespace sim = tessera::testing::sim;

extern "C" int sim_lock(pthread_mutex_t* mutex) noexcept __asm__("pthread_mutex_lock");
extern "C" int sim_try_lock(pthread_mutex_t* mutex) noexcept __asm__("pthread_mutex_trylock");
extern "C" int sim_unlock(pthread_mutex_t* mutex) noexcept __asm__("pthread_mutex_unlock");
extern "C" int sim_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) __asm__("pthread_cond_wait");
extern "C" int sim_timed_wait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                              const timespec* until) __asm__("pthread_cond_timedwait");
extern "C" int sim_clock_wait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                              const timespec* until) __asm__("pthread_cond_clockwait");
extern "C" int sim_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                          void* argument) noexcept __asm__("pthread_create");
extern "C" int sim_join(pthread_t thread, void** result) __asm__("pthread_join");

extern "C" int sim_lock(pthread_mutex_t* mutex) noexcept {
  const int code = sim::real(sim::real_lock, "pthread_mutex_lock")(mutex);
  if (code == 0) sim::learn_from(mutex);
  return code;
}

extern "C" int sim_try_lock(pthread_mutex_t* mutex) noexcept {
  const int code = sim::real(sim::real_try_lock, "pthread_mutex_trylock")(mutex);
  if (code == 0) sim::learn_from(mutex);
  return code;
}

extern "C" int sim_unlock(pthread_mutex_t* mutex) noexcept {
  sim::leave_in(mutex);
  return sim::real(sim::real_unlock, "pthread_mutex_unlock")(mutex);
}

extern "C" int sim_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  sim::leave_in(mutex);
  const int code = sim::real(sim::real_wait, "pthread_cond_wait", "GLIBC_2.3.2")(condition, mutex);
  sim::learn_from(mutex);
  return code;
}

extern "C" int sim_timed_wait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until) {
  sim::leave_in(mutex);
  const int code = sim::real(sim::real_timed_wait, "pthread_cond_timedwait", "GLIBC_2.3.2")(condition, mutex, until);
  sim::learn_from(mutex);
  return code;
}

extern "C" int sim_clock_wait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                              const timespec* until) {
  sim::leave_in(mutex);
  const int code = sim::real(sim::real_clock_wait, "pthread_cond_clockwait")(condition, mutex, clock, until);
  sim::learn_from(mutex);
  return code;
}

extern "C" int sim_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                          void* argument) noexcept {
  auto* const started = new (std::nothrow) sim::Started{run, argument, sim::shared(sim::t_known)};
  if (!started) return EAGAIN;
  const int code = sim::real(sim::real_create, "pthread_create")(thread, attributes, sim::run_started, started);
  if (code != 0) {
    sim::release(started->known);
    delete started;
  }
  return code;
}

extern "C" int sim_join(pthread_t thread, void** result) {
  const int code = sim::real(sim::real_join, "pthread_join")(thread, result);
  if (code == 0) sim::learn_from(reinterpret_cast<const void*>(thread));
  return code;
}
