#pragma once

#include <memory>

namespace tessera::intercept {

/// Note [Running a part again]
/// What operators do to tensors that act may depend on where in a run they are: a run of a pipeline's forward counts
/// its values. recompute() runs a part of it again in backward, and that part must find things as they were. So it asks
/// for the point where the part begins, and resumes there.

/// While one lives, a run is as it was at a point, for this thread.
class ResumedRun {
 public:
  ResumedRun() = default;
  virtual ~ResumedRun() = default;
  ResumedRun(const ResumedRun&) = delete;
  ResumedRun& operator=(const ResumedRun&) = delete;
};

/// A point of a run. May outlive it.
class RunPoint {
 public:
  virtual ~RunPoint() = default;
  virtual std::unique_ptr<ResumedRun> resume() const = 0;
};

/// A run that has such points.
class RunWithPoints {
 public:
  virtual ~RunWithPoints() = default;
  virtual std::shared_ptr<const RunPoint> point() const = 0;
};

/// While one lives, this thread is in that run. Scopes nest. Thread-safety: made and ended by one thread.
class RunScope {
 public:
  explicit RunScope(const RunWithPoints& run);
  ~RunScope();
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

 private:
  const RunWithPoints* outer_;
};

/// Of the innermost run of this thread; null outside of one.
std::shared_ptr<const RunPoint> current_run_point();

}  // namespace tessera::intercept
