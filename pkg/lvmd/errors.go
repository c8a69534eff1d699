package lvmd

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"golang.org/x/sys/unix"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvm"
)

// failure is an error as callers of the service see it: a gRPC code and an
// ErrorInfo. The table is in api/lvmd/v1/lvmd.proto; this file is the only
// place that maps to it.
type failure struct {
	code     codes.Code
	reason   string
	message  string
	metadata map[string]string
	cause    error
}

func (f *failure) Error() string {
	if f.cause != nil {
		return f.message + ": " + f.cause.Error()
	}
	return f.message
}

func (f *failure) Unwrap() error { return f.cause }

// GRPCStatus makes gRPC send the code and the details.
func (f *failure) GRPCStatus() *status.Status {
	s := status.New(f.code, f.Error())
	if f.reason == "" {
		return s
	}
	detailed, err := s.WithDetails(&errdetails.ErrorInfo{
		Reason: f.reason, Domain: names.ErrorDomain, Metadata: maps.Clone(f.metadata),
	})
	if err != nil {
		// Only an OK status cannot carry details.
		return s
	}
	return detailed
}

func invalidField(field, format string, args ...any) error {
	return &failure{
		code: codes.InvalidArgument, reason: names.ReasonInvalidField,
		message: field + ": " + fmt.Sprintf(format, args...), metadata: map[string]string{"field": field},
	}
}

func volumeNotFound(what string) error {
	return &failure{code: codes.NotFound, reason: names.ReasonVolumeNotFound, message: fmt.Sprintf("no volume %q on this node", what)}
}

func snapshotNotFound(what string) error {
	return &failure{code: codes.NotFound, reason: names.ReasonSnapshotNotFound, message: fmt.Sprintf("no snapshot %q on this node", what)}
}

func isNotFound(err error) bool {
	f, ok := errors.AsType[*failure](err)
	return ok && f.code == codes.NotFound
}

func notThin(format string, args ...any) error {
	return &failure{code: codes.FailedPrecondition, reason: names.ReasonNotThin, message: fmt.Sprintf(format, args...)}
}

func classNotFound(format string, args ...any) error {
	return &failure{code: codes.NotFound, reason: names.ReasonClassNotFound, message: fmt.Sprintf(format, args...)}
}

func requestDiffers(name, difference string) error {
	return &failure{
		code: codes.AlreadyExists, reason: names.ReasonRequestDiffers,
		message: fmt.Sprintf("volume %q exists and was requested otherwise: %s", name, difference),
	}
}

func noSpace(format string, args ...any) error {
	return &failure{code: codes.ResourceExhausted, reason: names.ReasonNoSpace, message: fmt.Sprintf(format, args...)}
}

func sizeOutOfRange(format string, args ...any) error {
	return &failure{code: codes.OutOfRange, reason: names.ReasonSizeOutOfRange, message: fmt.Sprintf(format, args...)}
}

func volumeInUse(id string, cause error) error {
	return &failure{
		code: codes.FailedPrecondition, reason: names.ReasonVolumeInUse,
		message: fmt.Sprintf("volume %s is open or mounted", id), cause: cause,
	}
}

func volumeWritten(id string) error {
	return &failure{
		code: codes.FailedPrecondition, reason: names.ReasonVolumeInUse,
		message: fmt.Sprintf("volume %s was written to while it was copied: nothing may use it until the copy is complete; thin volumes can be cloned while they are used", id),
	}
}

func operationPending(format string, args ...any) error {
	return &failure{code: codes.Aborted, reason: names.ReasonOperationPending, message: fmt.Sprintf(format, args...)}
}

func deviceMissing(format string, args ...any) error {
	return &failure{code: codes.Unavailable, reason: names.ReasonDeviceMissing, message: fmt.Sprintf(format, args...)}
}

func commandTimedOut(format string, args ...any) error {
	return &failure{code: codes.DeadlineExceeded, reason: names.ReasonCommandTimedOut, message: fmt.Sprintf(format, args...)}
}

// errStopping is what operations in flight end with when lvmd is told to stop.
var errStopping = &failure{code: codes.Unavailable, message: "lvmd is stopping"}

// publicError turns any error of an operation into one with a code; doing
// says what was attempted.
func publicError(doing string, err error) error {
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	for _, m := range []struct {
		err    error
		code   codes.Code
		reason string
	}{
		{lvm.ErrNoSpace, codes.ResourceExhausted, names.ReasonNoSpace},
		{lvm.ErrDeviceMissing, codes.Unavailable, names.ReasonDeviceMissing},
		{lvm.ErrUnavailable, codes.Unavailable, names.ReasonDeviceMissing},
		// The model has it: its disks are gone, or fail, or it was removed behind
		// our back, which the scan that follows tells.
		{lvm.ErrNotFound, codes.Unavailable, names.ReasonDeviceMissing},
		{unix.EIO, codes.Unavailable, names.ReasonDeviceMissing},
		{lvm.ErrTimedOut, codes.DeadlineExceeded, names.ReasonCommandTimedOut},
		{lvm.ErrBusy, codes.FailedPrecondition, names.ReasonVolumeInUse},
		{errQueueFull, codes.Aborted, names.ReasonOperationPending},
		{errWaitedTooLong, codes.Aborted, names.ReasonOperationPending},
		{errJournal, codes.Unavailable, ""},
		{context.Canceled, codes.Canceled, ""},
		{context.DeadlineExceeded, codes.DeadlineExceeded, ""},
	} {
		if errors.Is(err, m.err) {
			return &failure{code: m.code, reason: m.reason, message: doing, cause: err}
		}
	}
	return &failure{code: codes.Internal, reason: names.ReasonCommandFailed, message: doing, cause: err}
}
