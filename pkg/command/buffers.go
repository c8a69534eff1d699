package command

import "sync"

// headBuffer keeps the first limit bytes written to it. It does not embed bytes.Buffer: io.Copy
// would bypass Write by the ReadFrom of that.
type headBuffer struct {
	kept      []byte
	limit     int
	truncated bool
}

func (b *headBuffer) Write(p []byte) (int, error) {
	take := min(len(p), b.limit-len(b.kept))
	b.truncated = b.truncated || take < len(p)
	b.kept = append(b.kept, p[:take]...)
	return len(p), nil
}

// Words keeps the first and the last Limit/2 bytes written to it: the first message of a
// program is often the cause, the last one the consequence. Set Limit before use. Words is safe
// for concurrent use.
type Words struct {
	Limit int

	mu         sync.Mutex
	head, tail []byte
	dropped    bool
}

func (w *Words) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, half := len(p), w.Limit/2
	take := min(max(0, half-len(w.head)), len(p))
	w.head = append(w.head, p[:take]...)
	w.tail = append(w.tail, p[take:]...)
	if over := len(w.tail) - half; over > 0 {
		w.dropped = true
		w.tail = append(w.tail[:0], w.tail[over:]...)
	}
	return n, nil
}

// String returns the bytes kept, with a line of dots in place of dropped ones.
func (w *Words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.dropped {
		return string(w.head) + string(w.tail)
	}
	return string(w.head) + "\n…\n" + string(w.tail)
}

// Reset drops everything written.
func (w *Words) Reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.head, w.tail, w.dropped = nil, nil, false
}
