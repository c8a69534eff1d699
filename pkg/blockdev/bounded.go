package blockdev

import (
	"context"
	"time"
)

// Bounds limit the operations of a Handle.
type Bounds struct {
	// Guard counts abandoned operations, by the name Device.
	Guard  *Guard
	Device string
	// Timeout ends the wait for an operation with ErrTimedOut. The operation may go on, and
	// keep the device open.
	Timeout time.Duration
	// Waiting is called with true when an operation has lasted for Look, and with false when
	// that one has ended.
	Look    time.Duration
	Waiting func(bool)
}

// Bound bounds the operations of a Handle that wait for its device. They must run one at a
// time.
func Bound(h Handle, b Bounds) Handle { return &bounded{h, b} }

type bounded struct {
	Handle
	Bounds
}

func within[T any](b *bounded, operation func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), b.Timeout)
	defer cancel()
	called := make(chan struct{})
	waiting := time.AfterFunc(b.Look, func() {
		b.Waiting(true)
		close(called)
	})
	defer func() {
		if !waiting.Stop() {
			<-called
			b.Waiting(false)
		}
	}()
	return Do(ctx, b.Guard, b.Device, func(string) (T, error) { return operation() })
}

func (b *bounded) do(operation func() error) error {
	_, err := within(b, func() (struct{}, error) { return struct{}{}, operation() })
	return err
}

func (b *bounded) ReadAt(p []byte, off int64) (int, error) {
	return within(b, func() (int, error) { return b.Handle.ReadAt(p, off) })
}

func (b *bounded) WriteAt(p []byte, off int64) (int, error) {
	return within(b, func() (int, error) { return b.Handle.WriteAt(p, off) })
}

func (b *bounded) Zero(off, length int64) error {
	return b.do(func() error { return b.Handle.Zero(off, length) })
}

func (b *bounded) Overwrite(off, length int64) error {
	return b.do(func() error { return b.Handle.Overwrite(off, length) })
}

func (b *bounded) Discard(off, length int64) error {
	return b.do(func() error { return b.Handle.Discard(off, length) })
}

func (b *bounded) Sync() error { return b.do(b.Handle.Sync) }

func (b *bounded) CountWrites() error { return b.do(b.Handle.CountWrites) }

func (b *bounded) Written() (WriteMark, error) { return within(b, b.Handle.Written) }
