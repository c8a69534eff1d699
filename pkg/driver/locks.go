package driver

import (
	"fmt"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/carve-csi/carve/pkg/driver/csierror"
)

// locks has one lock for each volume, for calls that change something. Its zero value is
// ready.
type locks struct {
	mu   sync.Mutex
	held map[string]struct{}
}

// take takes the lock of a volume, without waiting. Aborted: another call has it. The caller
// calls release once.
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
