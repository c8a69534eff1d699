package driver

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/luks"
)

// failure is an error of ours whose code is known where it arises: what is
// wrong with a request, or with the state it meets.
type failure struct {
	code codes.Code
	err  error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// toStatus gives an error its gRPC code; it is the only place that does.
func toStatus(err error) error {
	var own *failure
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return status.Error(own.code, err.Error())
	}
	code := codes.Internal
	switch {
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, filesystem.ErrUnformatted), errors.Is(err, filesystem.ErrCorrupt),
		errors.Is(err, filesystem.ErrMemory),
		errors.Is(err, luks.ErrWrongKey), errors.Is(err, luks.ErrInUse),
		errors.Is(err, syscall.EBUSY):
		code = codes.FailedPrecondition
	case errors.Is(err, fs.ErrNotExist):
		code = codes.NotFound
	}
	return status.Error(code, err.Error())
}
