// Conversions between the kernels' element types and float on the CPU, to the bit as the GPU does
// them: round to nearest even; e4m3 (no infinities) saturates at 448 and keeps NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvtier/kernels.h"

namespace kvtier::kernels {

[[nodiscard]] float FloatFromBf16(uint16_t bits);
[[nodiscard]] float FloatFromFp16(uint16_t bits);
[[nodiscard]] float FloatFromE4m3(uint8_t bits);

[[nodiscard]] uint16_t Bf16FromFloat(float value);
[[nodiscard]] uint16_t Fp16FromFloat(float value);
[[nodiscard]] uint8_t E4m3FromFloat(float value);

// Bytes of one element.
[[nodiscard]] size_t ElementBytes(kvt_dtype dtype);

// Element `index` of an array of that type.
[[nodiscard]] float LoadElement(const void* array, kvt_dtype dtype, int64_t index);
void StoreElement(void* array, kvt_dtype dtype, int64_t index, float value);

// `value` rounded to that type and back.
[[nodiscard]] float RoundTo(kvt_dtype dtype, float value);

}  // namespace kvtier::kernels
