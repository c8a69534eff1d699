package lvm

import "bytes"

// headBuffer keeps the first limit bytes written to it and swallows the rest.
type headBuffer struct {
	bytes.Buffer
	limit     int
	truncated bool
}

func (b *headBuffer) Write(p []byte) (int, error) {
	room := b.limit - b.Len()
	if len(p) > room {
		b.truncated = true
		b.Buffer.Write(p[:room])
		return len(p), nil
	}
	return b.Buffer.Write(p)
}

// headTailBuffer keeps the first and the last limit/2 bytes written to it:
// the first complaint is often the cause, the last one the consequence.
type headTailBuffer struct {
	limit   int
	head    []byte
	tail    []byte
	dropped bool
}

func (b *headTailBuffer) Write(p []byte) (int, error) {
	n := len(p)
	half := b.limit / 2
	if room := half - len(b.head); room > 0 {
		take := min(room, len(p))
		b.head = append(b.head, p[:take]...)
		p = p[take:]
	}
	if len(p) > half {
		b.dropped = true
		p = p[len(p)-half:]
	}
	b.tail = append(b.tail, p...)
	if over := len(b.tail) - half; over > 0 {
		b.dropped = true
		b.tail = append(b.tail[:0], b.tail[over:]...)
	}
	return n, nil
}

// String is what was kept, with a line of dots where something was dropped.
func (b *headTailBuffer) String() string {
	if !b.dropped {
		return string(b.head) + string(b.tail)
	}
	return string(b.head) + "\n…\n" + string(b.tail)
}
