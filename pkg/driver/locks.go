package driver

import (
	"fmt"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/carve-csi/carve/pkg/driver/csierror"
)

// locks holds one lock per volume, for calls that change it.
type locks struct {
	mu   sync.Mutex
	held map[string]struct{}
}

// take returns Aborted at once if another call holds the lock. The caller calls
// release once.
func (l *locks) take(id string) (release func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, taken := l.held[id]; taken {
		return nil, csierror.New(codes.Aborted, fmt.Errorf("another operation on volume %s is running", id))
	}
	if l.held == nil {
		l.held = map[string]struct{}{}
	}
	l.held[id] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.held, id)
	}, nil
}
