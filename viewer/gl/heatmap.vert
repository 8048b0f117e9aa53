// One rectangle for each tile in view. Row 0 of the picture is row 0 of the framebuffer.
layout(location = 0) in ivec4 corner;  // x, y, pixels; layer (-1: none), levels above the drawn one
uniform vec2 size;                     // pixels
flat out ivec2 source;
void main() {
  source = corner.zw;
  gl_Position = vec4(vec2(corner.xy) / size * 2.0 - 1.0, 0.0, 1.0);
}
