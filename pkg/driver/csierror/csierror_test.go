package csierror

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/luks"
)

func TestErrorsHaveTheirCodes(t *testing.T) {
	for want, all := range map[codes.Code][]error{
		codes.OK:                 {nil},
		codes.InvalidArgument:    {Invalid("volume_id", "a value is required")},
		codes.Aborted:            {fmt.Errorf("stage: %w", New(codes.Aborted, fs.ErrNotExist))},
		codes.Canceled:           {context.Canceled},
		codes.DeadlineExceeded:   {fmt.Errorf("wait: %w", context.DeadlineExceeded), fmt.Errorf("check: %w", blockdev.ErrTimedOut)},
		codes.FailedPrecondition: {filesystem.ErrUnformatted, filesystem.ErrCorrupt, filesystem.ErrMemory, luks.ErrWrongKey, luks.ErrInUse, syscall.EBUSY},
		codes.NotFound:           {fs.ErrNotExist},
		codes.Internal:           {errors.New("any other"), syscall.EIO},
	} {
		for _, err := range all {
			if got := status.Code(ToStatus(err)); got != want {
				t.Errorf("%v: got %v, want %v", err, got, want)
			}
		}
	}
	if got := ToStatus(Invalid("target_path", "%q is not allowed", "/x")); status.Convert(got).Message() != `target_path: "/x" is not allowed` {
		t.Errorf("got %v", got)
	}
	for err, want := range map[error]codes.Code{nil: codes.OK, fs.ErrNotExist: codes.Unknown, New(codes.NotFound, fs.ErrNotExist): codes.NotFound} {
		if got := CodeOf(err); got != want {
			t.Errorf("%v: got %v, want %v", err, got, want)
		}
	}
}
