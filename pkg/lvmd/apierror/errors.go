package apierror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/fairqueue"
)

// Error is an error with a gRPC code and an ErrorInfo. It unwraps to its cause.
type Error struct {
	code     codes.Code
	reason   string
	message  string
	metadata map[string]string
	cause    error
}

func (e *Error) Error() string {
	if e.cause != nil {
		return e.message + ": " + e.cause.Error()
	}
	return e.message
}

func (e *Error) Unwrap() error { return e.cause }

// GRPCStatus lets gRPC send the code and the details.
func (e *Error) GRPCStatus() *status.Status {
	s := status.New(e.code, e.Error())
	if e.reason == "" {
		return s
	}
	detailed, err := s.WithDetails(&errdetails.ErrorInfo{
		Reason: e.reason, Domain: names.ErrorDomain, Metadata: maps.Clone(e.metadata),
	})
	if err != nil {
		// Only an OK status cannot carry details.
		return s
	}
	return detailed
}

// InvalidField is INVALID_ARGUMENT for a field of a request.
func InvalidField(field, format string, args ...any) error {
	return &Error{
		code: codes.InvalidArgument, reason: names.ReasonInvalidField,
		message: field + ": " + fmt.Sprintf(format, args...), metadata: map[string]string{"field": field},
	}
}

// FormatRefused is INVALID_ARGUMENT for settings that mkfs rejected.
func FormatRefused(settings string, cause error) error {
	return &Error{
		code: codes.InvalidArgument, reason: names.ReasonFormatRefused,
		message: fmt.Sprintf("no file system can be made with the settings %q (parameters %s*)", settings, names.ParamMkfsPrefix), cause: cause,
	}
}

// VolumeNotFound is NOT_FOUND for a volume's id or name.
func VolumeNotFound(what string) error {
	return &Error{code: codes.NotFound, reason: names.ReasonVolumeNotFound, message: fmt.Sprintf("no volume %q on this node", what)}
}

// SnapshotNotFound is NOT_FOUND for a snapshot's id or name.
func SnapshotNotFound(what string) error {
	return &Error{code: codes.NotFound, reason: names.ReasonSnapshotNotFound, message: fmt.Sprintf("no snapshot %q on this node", what)}
}

// IsNotFound reports whether an error has the code NOT_FOUND.
func IsNotFound(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.code == codes.NotFound
}

// NotThin is FAILED_PRECONDITION for operations of thin volumes only.
func NotThin(format string, args ...any) error {
	return &Error{code: codes.FailedPrecondition, reason: names.ReasonNotThin, message: fmt.Sprintf(format, args...)}
}

// VolumeLeftAlone is FAILED_PRECONDITION for a volume whose tags lvmd does not accept.
func VolumeLeftAlone(id, group, why string) error {
	return &Error{
		code: codes.FailedPrecondition, reason: names.ReasonVolumeLeftAlone,
		message: fmt.Sprintf("volume %s of volume group %q is left alone: %s", id, group, why),
	}
}

// ClassNotFound is NOT_FOUND for a device class.
func ClassNotFound(format string, args ...any) error {
	return &Error{code: codes.NotFound, reason: names.ReasonClassNotFound, message: fmt.Sprintf(format, args...)}
}

// RequestDiffers is ALREADY_EXISTS for a name with a different earlier request.
func RequestDiffers(name, difference string) error {
	return &Error{
		code: codes.AlreadyExists, reason: names.ReasonRequestDiffers,
		message: fmt.Sprintf("volume %q exists and was requested otherwise: %s", name, difference),
	}
}

// NoSpace is RESOURCE_EXHAUSTED for lack of free space.
func NoSpace(format string, args ...any) error {
	return &Error{code: codes.ResourceExhausted, reason: names.ReasonNoSpace, message: fmt.Sprintf(format, args...)}
}

// SizeOutOfRange is OUT_OF_RANGE if no size fits between the required one and the limit.
func SizeOutOfRange(format string, args ...any) error {
	return &Error{code: codes.OutOfRange, reason: names.ReasonSizeOutOfRange, message: fmt.Sprintf(format, args...)}
}

// VolumeInUse is FAILED_PRECONDITION for a volume that is open or mounted.
func VolumeInUse(id string, cause error) error {
	return &Error{
		code: codes.FailedPrecondition, reason: names.ReasonVolumeInUse,
		message: fmt.Sprintf("volume %s is open or mounted", id), cause: cause,
	}
}

// VolumeKept is FAILED_PRECONDITION for a volume that is not provisional.
func VolumeKept(id string) error {
	return &Error{
		code: codes.FailedPrecondition, reason: names.ReasonVolumeKept,
		message: fmt.Sprintf("volume %s is not provisional: a Pod got it, or a PersistentVolume named it", id),
	}
}

// HasDependents is FAILED_PRECONDITION for a volume with dependents, which the parameter which
// describes.
func HasDependents(id, which string) error {
	return &Error{
		code: codes.FailedPrecondition, reason: names.ReasonHasDependents,
		message: fmt.Sprintf("volume %s can be neither deleted nor grown: %s", id, which),
	}
}

// VolumeWritten is FAILED_PRECONDITION for the source of a copy that was written to.
func VolumeWritten(id string) error {
	return &Error{
		code: codes.FailedPrecondition, reason: names.ReasonVolumeInUse,
		message: fmt.Sprintf("volume %s was written to while it was copied: nothing may use it until the copy is complete; thin volumes can be cloned while they are used", id),
	}
}

// WritesNotCounted is FAILED_PRECONDITION for the source of a copy if the kernel does not count
// writes to it, which would show whether the copy is of one point in time. lvmd enables that when a
// copy begins.
func WritesNotCounted(id string, cause error) error {
	return &Error{
		code: codes.FailedPrecondition, reason: names.ReasonWritesNotCounted,
		message: fmt.Sprintf("volume %s cannot be copied: whether it is written to meanwhile would not be seen: %v: "+
			"let lvmd write to that file, and leave 1 in it as long as the copy runs", id, cause),
	}
}

// OperationPending is ABORTED: the caller should retry.
func OperationPending(format string, args ...any) error {
	return &Error{code: codes.Aborted, reason: names.ReasonOperationPending, message: fmt.Sprintf(format, args...)}
}

// DeviceMissing is UNAVAILABLE for a volume group, or a disk of it, that is missing.
func DeviceMissing(format string, args ...any) error {
	return &Error{code: codes.Unavailable, reason: names.ReasonDeviceMissing, message: fmt.Sprintf(format, args...)}
}

// NotResponding is UNAVAILABLE while LVM does not answer for a volume group. Nothing was begun:
// callers may ask another node at once.
func NotResponding(format string, args ...any) error {
	return &Error{code: codes.Unavailable, reason: names.ReasonNotResponding, message: fmt.Sprintf(format, args...)}
}

// Begun converts the error of an operation that already had effects: NotResponding, which denies
// that, becomes a timeout with unknown outcome.
func Begun(err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok || e.reason != names.ReasonNotResponding {
		return err
	}
	return &Error{code: codes.DeadlineExceeded, reason: names.ReasonCommandTimedOut, message: e.message, cause: e.cause}
}

// LeaderSuperseded is FAILED_PRECONDITION for a request of a leader that is no longer the newest.
func LeaderSuperseded(format string, args ...any) error {
	return &Error{code: codes.FailedPrecondition, reason: names.ReasonLeaderSuperseded, message: fmt.Sprintf(format, args...)}
}

// WrongTransport is PERMISSION_DENIED for a method that the call's transport does not serve.
func WrongTransport(format string, args ...any) error {
	return &Error{code: codes.PermissionDenied, reason: names.ReasonWrongTransport, message: fmt.Sprintf(format, args...)}
}

// ErrNotStored matches failed writes to the journal, which had no effect.
var ErrNotStored = errors.New("the journal cannot be written")

// ErrStopping is the error of operations in flight when lvmd stops.
var ErrStopping error = &Error{code: codes.Unavailable, message: "lvmd is stopping"}

// Reworded replaces words that differ between attempts, such as a new volume's id, in the error's
// text. pairs alternates old and new. Kubernetes counts Events with the same text, and keeps all
// others.
func Reworded(err error, pairs ...string) error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	reworded := *e
	reworded.message, reworded.cause = e.Error(), nil
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i] != "" {
			reworded.message = strings.ReplaceAll(reworded.message, pairs[i], pairs[i+1])
		}
	}
	return &reworded
}

// From returns an error with a code for any error of an operation; doing says what was attempted.
// It returns nil, and an *Error, unchanged.
func From(doing string, err error) error {
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*Error](err); ok {
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
		// The inventory has the volume: its disks are gone or fail, or another program removed it,
		// which the next scan finds.
		{lvm.ErrNotFound, codes.Unavailable, names.ReasonDeviceMissing},
		{unix.EIO, codes.Unavailable, names.ReasonDeviceMissing},
		{lvm.ErrTimedOut, codes.DeadlineExceeded, names.ReasonCommandTimedOut},
		{lvm.ErrBusy, codes.FailedPrecondition, names.ReasonVolumeInUse},
		{lvm.ErrHasDependents, codes.FailedPrecondition, names.ReasonHasDependents},
		{fairqueue.ErrFull, codes.Aborted, names.ReasonOperationPending},
		{fairqueue.ErrTimedOut, codes.Aborted, names.ReasonOperationPending},
		{ErrNotStored, codes.Unavailable, ""},
		{context.Canceled, codes.Canceled, ""},
		{context.DeadlineExceeded, codes.DeadlineExceeded, ""},
	} {
		if errors.Is(err, m.err) {
			return &Error{code: m.code, reason: m.reason, message: doing, cause: err}
		}
	}
	return &Error{code: codes.Internal, reason: names.ReasonCommandFailed, message: doing, cause: err}
}
