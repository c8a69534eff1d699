package driver

import (
	"context"
	"log/slog"
	"path"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/pkg/driver/csierror"
)

// interceptor sets every error's code, and logs and measures every call. It
// logs only the volume and the path of a request, never secrets or contexts.
func interceptor(log *slog.Logger, metrics *Metrics) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		begin := time.Now()
		answer, err := handler(ctx, req)
		if _, coded := status.FromError(err); !coded {
			err = csierror.ToStatus(err)
		}
		took := time.Since(begin)
		method, code := path.Base(info.FullMethod), status.Code(err)
		metrics.called(info.FullMethod, err, took)

		attrs := append(subject(req), slog.Duration("duration", took))
		level, message := slog.LevelDebug, method
		switch {
		case err != nil:
			level, message = slog.LevelWarn, method+" failed"
			if code == codes.NotFound || code == codes.Canceled || code == codes.Aborted {
				level = slog.LevelInfo
			}
			attrs = append(attrs, slog.String("code", code.String()), slog.String("error", status.Convert(err).Message()))
		case changes(req):
			level = slog.LevelInfo
		}
		log.LogAttrs(ctx, level, message, attrs...)
		return answer, err
	}
}

func changes(req any) bool {
	switch req.(type) {
	case *csi.NodeStageVolumeRequest, *csi.NodeUnstageVolumeRequest, *csi.NodePublishVolumeRequest,
		*csi.NodeUnpublishVolumeRequest, *csi.NodeExpandVolumeRequest:
		return true
	}
	return false
}

func subject(req any) []slog.Attr {
	var attrs []slog.Attr
	if r, ok := req.(interface{ GetVolumeId() string }); ok {
		attrs = append(attrs, slog.String("volume", r.GetVolumeId()))
	}
	switch r := req.(type) {
	case interface{ GetTargetPath() string }:
		attrs = append(attrs, slog.String("path", r.GetTargetPath()))
	case interface{ GetVolumePath() string }:
		attrs = append(attrs, slog.String("path", r.GetVolumePath()))
	case interface{ GetStagingTargetPath() string }:
		attrs = append(attrs, slog.String("path", r.GetStagingTargetPath()))
	}
	return attrs
}
