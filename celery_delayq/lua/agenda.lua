-- Tell which queue to look at next, and when.
--
-- KEYS     1 agenda
-- ARGV     –
-- Returns  {now (µs), queue or '', due (ms) or ''}
-- Repeat   reads only
-- @include clock
-- @include agenda

return agenda_head(KEYS[1], now_us())
