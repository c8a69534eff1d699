package command

import "sync"

// headBuffer keeps the first limit bytes written to it and drops the rest. It embeds no
// bytes.Buffer: io.Copy would go around Write by that one's ReadFrom.
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

// Words keeps the first and the last Limit/2 bytes written to it: the first
// message of a program is often the cause, the last one the consequence. Limit is
// set before use. It is safe for concurrent use.
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

// String is what was kept, with a line of dots where something was dropped.
func (w *Words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.dropped {
		return string(w.head) + string(w.tail)
	}
	return string(w.head) + "\n…\n" + string(w.tail)
}

// Reset forgets what was written.
func (w *Words) Reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.head, w.tail, w.dropped = nil, nil, false
}
