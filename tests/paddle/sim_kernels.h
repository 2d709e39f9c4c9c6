// The kernels that other makers' devices have for what is not contiguous, and without which Paddle refuses to write there.

#include <algorithm>
#include <cstring>
#include <vector>

#include "paddle/phi/capi/all.h"

namespace sim {

void drain_compute();

inline char* bytes_of(const phi::DenseTensor& tensor) {  // from its first element on
  C_Status status;
  return static_cast<char*>(PD_TensorGetDataPointer(tensor.raw_data(), &status));
}

inline std::vector<int64_t> strides_of(const phi::DenseTensor& tensor) {
  C_Status status;
  auto count = PD_TensorGetNumStrides(tensor.raw_data(), &status);
  std::vector<int64_t> strides;
  for (int64_t i = 0; i < count; i++) strides.push_back(PD_TensorGetStride(tensor.raw_data(), i, &status));
  return strides;
}

inline void copy_elements(const char* source, const std::vector<int64_t>& from, char* target, const std::vector<int64_t>& to,
                          const std::vector<int64_t>& dims, size_t itemsize, size_t dim = 0) {
  if (dim == dims.size()) {
    std::memcpy(target, source, itemsize);
    return;
  }
  for (int64_t i = 0; i < dims[dim]; i++)
    copy_elements(source + i * from[dim] * int64_t(itemsize), from, target + i * to[dim] * int64_t(itemsize), to, dims, itemsize,
                  dim + 1);
}

inline std::vector<int64_t> dense(const std::vector<int64_t>& dims) {
  std::vector<int64_t> strides(dims.size(), 1);
  for (int64_t i = int64_t(dims.size()) - 2; i >= 0; i--) strides[i] = strides[i + 1] * dims[i + 1];
  return strides;
}

template <typename T>
void StridedCopy(const phi::Context&, const phi::DenseTensor& input, const std::vector<int64_t>& dims,
                 const std::vector<int64_t>& strides, int64_t offset, phi::DenseTensor* out) {
  out->Resize(dims);
  out->set_strides(strides);
  out->set_offset(offset);
  drain_compute();
  if (input.numel()) copy_elements(bytes_of(input), strides_of(input), bytes_of(*out), strides, dims, sizeof(T));
}

template <typename T>
void Contiguous(const phi::Context& context, const phi::DenseTensor& input, phi::DenseTensor* out) {
  auto dims = input.dims();
  out->Resize(dims);
  out->set_offset(0);
  out->set_strides(dense(dims));
  auto target = reinterpret_cast<char*>(context.Alloc<T>(out));
  drain_compute();
  if (input.numel()) copy_elements(bytes_of(input), strides_of(input), target, dense(dims), dims, sizeof(T));
}

template <typename T>
void Assign(const phi::Context& context, const phi::DenseTensor& input, phi::DenseTensor* out) {
  auto target = reinterpret_cast<char*>(context.Alloc<T>(out));
  auto dims = input.dims();
  drain_compute();
  if (input.numel()) copy_elements(bytes_of(input), strides_of(input), target, dense(dims), dims, sizeof(T));
}

template <typename T>
void Fill(const phi::Context& context, const phi::DenseTensor& input, const phi::Scalar& value, phi::DenseTensor* out) {
  auto target = context.Alloc<T>(out);
  drain_compute();
  std::fill(target, target + input.numel(), static_cast<T>(value.to<float>()));
}

}  // namespace sim

#define SIM_KERNEL(name, function)                                                                          \
  PD_BUILD_PHI_KERNEL(name, sim, ALL_LAYOUT, sim::function, bool, uint8_t, int8_t, int16_t, int32_t, int64_t, float, double, \
                      phi::dtype::float16, phi::dtype::bfloat16) {}

SIM_KERNEL(strided_copy, StridedCopy)
SIM_KERNEL(contiguous, Contiguous)
SIM_KERNEL(assign, Assign)
SIM_KERNEL(fill, Fill)
