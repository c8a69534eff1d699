// Package csierror gives errors of the node plugin the gRPC codes that the CSI
// specification asks for. An error whose code is known where it arises carries it; the
// others get theirs from ToStatus, at the one place where answers leave.
package csierror

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/luks"
)

// coded is an error whose code is known where it arises: what is wrong with a request, or
// with the state that it meets.
type coded struct {
	code codes.Code
	err  error
}

func (c *coded) Error() string { return c.err.Error() }
func (c *coded) Unwrap() error { return c.err }

// New gives an error a code.
func New(code codes.Code, err error) error { return &coded{code, err} }

// Invalid says what is wrong with a field of a request: InvalidArgument.
func Invalid(field, format string, args ...any) error {
	return New(codes.InvalidArgument, fmt.Errorf("%s: %w", field, fmt.Errorf(format, args...)))
}

// ToStatus gives an error its gRPC code; nil stays nil.
func ToStatus(err error) error {
	var own *coded
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
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, blockdev.ErrTimedOut):
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

// CodeOf returns the code that New gave an error: Unknown if none, OK for nil.
func CodeOf(err error) codes.Code {
	var own *coded
	switch {
	case err == nil:
		return codes.OK
	case errors.As(err, &own):
		return own.code
	}
	return codes.Unknown
}
