// Pixels within the matrix: ValueScale::place() and color_of(), NaN hatched, evicted tokens faded.
uniform usampler2DArray tiles;  // [layer, row, column]: values' bits, since samplers may change a NaN
uniform isampler2D columns;     // [pixel]: texel * 2 + whether it is faded
uniform isampler2D rows;        // [pixel]: texel
uniform sampler2D colors;       // [KCOLORS]: color_of()
uniform float low, high;
uniform float threshold;        // symlog
uniform float start, span;      // symlog: of low, and of high less that; log: 0, of high / low
uniform bool mark_beyond;
uniform vec3 outside, pending, hatch_a, hatch_b, under, over;
flat in ivec2 source;
out vec4 pixel;

// Natural logarithm of x > 0 to float's accuracy, which log() need not have.
float ln(float x) {
  int bits = floatBitsToInt(x);
  int exponent = (bits - 0x3F3504F3) >> 23;
  float mantissa = intBitsToFloat(bits - (exponent << 23));  // sqrt(1/2) .. sqrt(2)
  float s = (mantissa - 1.0) / (mantissa + 1.0);
  float s2 = s * s;
  float series = 1.0 + s2 * (1.0 / 3.0 + s2 * (1.0 / 5.0 + s2 * (1.0 / 7.0 + s2 / 9.0)));
  return float(exponent) * 0.693147181 + 2.0 * s * series;
}

// ValueScale::place() of a finite value.
float place(float value) {
#if KIND == 0
  return (value - low) / (high - low);
#elif KIND == 1
  return value > 0.0 ? (ln(value / low) - start) / span : 0.0;
#else
  float size = ln(1.0 + abs(value) / threshold);
  return ((value < 0.0 ? -size : size) - start) / span;
#endif
}

void main() {
  ivec2 at = ivec2(gl_FragCoord.xy);
  int column = texelFetch(columns, ivec2(at.x, 0), 0).r;
  int row = texelFetch(rows, ivec2(at.y, 0), 0).r;
  ivec2 within = (ivec2(column >> 1, row) >> source.g) & ((1 << KTILE_BITS) - 1);
  uint bits = texelFetch(tiles, ivec3(within, max(source.r, 0)), 0).r;

  // Infinities become the largest numbers, which lie beyond every range.
  uint magnitude = bits & 0x7FFFFFFFu;
  float value = uintBitsToFloat((bits & 0x80000000u) | min(magnitude, 0x7F7FFFFFu));
  float t = place(value);
  t = t > 0.0 ? min(t, 1.0) : 0.0;
  vec3 color = texelFetch(colors, ivec2(int(t * float(KCOLORS - 1) + 0.5), 0), 0).rgb;
  if (mark_beyond) color = value < low ? under : value > high ? over : color;
  if (magnitude > 0x7F800000u) color = (at.x + at.y) / KHATCH_WIDTH % 2 == 0 ? hatch_a : hatch_b;
  if (source.r < 0) color = pending;
  if ((column & 1) != 0) color += (outside - color) * KFADE;
  pixel = vec4(color, 1.0);
}
