package lvmd

import (
	"context"
	"log/slog"
	"path"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/iolimit"
)

// interceptor rejects methods that the transport does not serve, and changes by a superseded
// leader. It logs changes and failures at info and above, successful reads at debug.
func (s *Service) interceptor(t Transport) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		start := time.Now()
		var resp any
		err := checkMethod(t, info.FullMethod)
		if err == nil {
			err = s.leaders.admit(ctx, req)
		}
		if err == nil {
			resp, err = handler(ctx, req)
		}
		took := time.Since(start)
		code := status.Code(err)
		method := path.Base(info.FullMethod)
		s.metrics.observeCall(method, code.String(), took)

		attrs := append(subject(req, resp), "duration", took)
		switch {
		case err != nil:
			level := slog.LevelWarn
			if code == codes.NotFound || code == codes.Canceled || code == codes.Aborted {
				level = slog.LevelInfo
			}
			s.log.Log(ctx, level, method+" failed", append(attrs, "code", code.String(), "error", err)...)
		case changes(req) && !isRoutine(req):
			s.log.Info(method, attrs...)
		default:
			s.log.Debug(method, attrs...)
		}
		return resp, err
	}
}

func streamInterceptor(t Transport) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if err := checkMethod(t, info.FullMethod); err != nil {
			return err
		}
		return handler(srv, stream)
	}
}

func isRoutine(req any) bool {
	_, ok := req.(*lvmdv1.KeepVolumeRequest)
	return ok
}

func changes(req any) bool {
	switch req.(type) {
	case *lvmdv1.CreateVolumeRequest, *lvmdv1.DeleteVolumeRequest, *lvmdv1.ExpandVolumeRequest, *lvmdv1.ModifyVolumeRequest,
		*lvmdv1.CreateSnapshotRequest, *lvmdv1.DeleteSnapshotRequest,
		*lvmdv1.NoteEncryptedRequest, *lvmdv1.NoteHealthRequest, *lvmdv1.KeepVolumeRequest,
		*lvmdv1.AdoptVolumeRequest, *lvmdv1.ConfirmAdoptionRequest, *lvmdv1.RevertAdoptionRequest:
		return true
	}
	return false
}

func subject(req, resp any) []any {
	var attrs []any
	add := func(key, value string) {
		if value != "" {
			attrs = append(attrs, key, value)
		}
	}
	switch r := req.(type) {
	case *lvmdv1.CreateVolumeRequest:
		if created, ok := resp.(*lvmdv1.CreateVolumeResponse); ok {
			add("volume", created.GetVolume().GetId())
		}
		add("name", r.GetName())
		add("class", r.GetDeviceClass())
		if o := r.GetOwner(); o.GetClaimName() != "" {
			add("claim", o.GetClaimNamespace()+"/"+o.GetClaimName())
		} else if o.GetPodUid() != "" {
			add("pod", o.GetPodNamespace()+"/"+o.GetPodName())
		}
		attrs = append(attrs, "bytes", r.GetRequiredBytes())
	case *lvmdv1.AdoptVolumeRequest:
		if adopted, ok := resp.(*lvmdv1.AdoptVolumeResponse); ok {
			add("volume", adopted.GetVolume().GetId())
		}
		add("name", r.GetName())
		add("from", r.GetLvName())
		attrs = append(attrs, "dryRun", r.GetDryRun())
	case *lvmdv1.ConfirmAdoptionRequest:
		add("volume", r.GetId())
	case *lvmdv1.RevertAdoptionRequest:
		add("volume", r.GetId())
	case interface {
		GetId() string
		GetName() string
	}:
		add("volume", r.GetId())
		add("name", r.GetName())
	case *lvmdv1.ExpandVolumeRequest:
		add("volume", r.GetId())
		attrs = append(attrs, "bytes", r.GetRequiredBytes())
	case *lvmdv1.ModifyVolumeRequest:
		add("volume", r.GetId())
		add("io_limits", iolimit.FromProto(r.GetIoLimits()).String())
	case *lvmdv1.NoteEncryptedRequest:
		add("volume", r.GetId())
	case *lvmdv1.KeepVolumeRequest:
		add("volume", r.GetId())
	case *lvmdv1.NoteHealthRequest:
		add("volume", r.GetId())
		attrs = append(attrs, "conditions", len(r.GetFound()))
	}
	return attrs
}
