#pragma once

#include <Eigen/Core>

#include <cstddef>
#include <new>
#include <utility>

namespace kvreplay {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using Vector = Eigen::Matrix<T, Eigen::Dynamic, 1>;

/// Matrix [rows, cols], row by row, that owns its numbers or points to numbers of another owner. A copy
/// always owns its numbers. Never write through a matrix that points to others.
template <class T>
class HeadMatrix : public Eigen::Map<Matrix<T>> {
  using View = Eigen::Map<Matrix<T>>;

 public:
  HeadMatrix() : View(nullptr, 0, 0) {}
  HeadMatrix(Matrix<T> own) : View(nullptr, 0, 0), own_(std::move(own)) { show_own(); }  // NOLINT: as Eigen's
  template <class Derived>
  HeadMatrix(const Eigen::EigenBase<Derived>& numbers)  // NOLINT: as Eigen's
      : HeadMatrix(Matrix<T>(numbers.derived())) {}
  HeadMatrix(const HeadMatrix& other) : HeadMatrix(Matrix<T>(static_cast<const View&>(other))) {}
  HeadMatrix(HeadMatrix&& other) noexcept : View(other.data(), other.rows(), other.cols()) { take(other); }
  /// Points to `numbers`, which must outlive the result.
  static HeadMatrix of(const T* numbers, Eigen::Index rows, Eigen::Index cols) {
    HeadMatrix view;
    view.show(const_cast<T*>(numbers), rows, cols);  // NOLINT: nobody writes through it
    return view;
  }
  static HeadMatrix of(const Matrix<T>& numbers) {
    return of(numbers.data(), numbers.rows(), numbers.cols());
  }

  HeadMatrix& operator=(const HeadMatrix& other) { return *this = HeadMatrix(other); }
  HeadMatrix& operator=(HeadMatrix&& other) noexcept {
    if (this == &other) return *this;
    show(other.data(), other.rows(), other.cols());
    take(other);
    return *this;
  }
  template <class Derived>
  HeadMatrix& operator=(const Eigen::EigenBase<Derived>& numbers) {
    return *this = HeadMatrix(numbers);
  }

  void resize(Eigen::Index rows, Eigen::Index cols) {
    own_.resize(rows, cols);
    show_own();
  }
  /// True if the numbers belong to another object.
  bool borrowed() const { return this->data() != own_.data(); }

 private:
  // Eigen's way to let a map show something else.
  void show(T* numbers, Eigen::Index rows, Eigen::Index cols) {
    ::new (static_cast<void*>(static_cast<View*>(this))) View(numbers, rows, cols);
  }
  void show_own() { show(own_.data(), own_.rows(), own_.cols()); }
  /// Takes ownership of the numbers of `other`, which this map already points to; moving a matrix keeps its
  /// place in memory.
  void take(HeadMatrix& other) noexcept {
    own_ = std::move(other.own_);
    other.own_ = Matrix<T>();
    other.show(nullptr, 0, 0);
  }

  Matrix<T> own_;
};

}  // namespace kvreplay
