// Package inline manages volumes that Pods define in their own specification.
// Such a volume has no claim: it is created when it is published, mounted at
// its target path without staging, and removed when it is unpublished. In lvmd
// its name is the kubelet's id of it, and its owner is the Pod.
//
// The package decides which requests of Pods to allow, and creates and removes
// the volumes, including those whose Pods the kubelet has forgotten (Reclaim).
// Its caller, the node service in package driver, mounts them.
package inline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/resource"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/driver/csierror"
	"github.com/carve-csi/carve/pkg/driver/kubelet"
	"github.com/carve-csi/carve/pkg/driver/lvmdclient"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/quantity"
)

// id is the kubelet's form: a digest of the Pod's UID and the volume's name in
// the Pod.
var id = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)

// IsID reports whether a volume's id is one that a kubelet gives to inline
// volumes.
func IsID(volume string) bool { return id.MatchString(volume) }

// Keys that a kubelet adds to the volume context if the CSIDriver object has
// podInfoOnMount. They override those of a Pod.
const (
	contextEphemeral    = "csi.storage.k8s.io/ephemeral"
	contextPod          = "csi.storage.k8s.io/pod."
	contextPodName      = contextPod + "name"
	contextPodNamespace = contextPod + "namespace"
	contextPodUID       = contextPod + "uid"
	contextAccount      = "csi.storage.k8s.io/serviceAccount."
)

// DefaultMaxBytes is the default limit of a volume's size. No quota counts
// inline volumes, so without a limit a namespace's users could fill every node.
const DefaultMaxBytes = 10 << 30

// maxSize prevents an overflow when rounding up.
const maxSize = math.MaxInt64 / 2

// removeTimeout bounds a deletion by lvmd, which wipes later.
const removeTimeout = 30 * time.Second

// Is reports whether a request is for an inline volume. Without podInfoOnMount
// in the CSIDriver object only the id shows that.
func Is(req *csi.NodePublishVolumeRequest) bool {
	return req.GetVolumeContext()[contextEphemeral] == "true" || IsID(req.GetVolumeId())
}

// Events of inline volumes, for a metric.
const (
	EventMade      = "made"
	EventRefused   = "refused"
	EventTooLarge  = "too-large"
	EventRemoved   = "removed"
	EventReclaimed = "reclaimed"
)

// Options configure Volumes. All fields but Enabled and MaxBytes are required.
type Options struct {
	// Enabled allows Pods to define volumes. Existing ones are removed with
	// their Pods in any case.
	Enabled bool
	// MaxBytes is the largest size of new volumes; zero means no limit.
	MaxBytes int64
	Kubelet  kubelet.Dir
	LVMD     lvmdclient.Client
	// Lock locks a volume by the kubelet's id, without waiting.
	Lock func(id string) (release func(), err error)
	// Explain adds a volume's other mounts, if any, to the error of a deletion.
	Explain func(err error, v *lvmdv1.Volume) error
	Count   func(event string)
	Log     *slog.Logger
}

// Volumes makes and removes inline volumes. Its methods may be called concurrently.
type Volumes struct{ options Options }

// New returns Volumes.
func New(o Options) *Volumes { return &Volumes{options: o} }

// Request is a checked request to publish an inline volume.
type Request struct {
	CSI   *csi.NodePublishVolumeRequest
	Block bool
	// FSType is empty if any will do.
	FSType string
}

// Publish creates a volume, unless it exists, and calls mount. If mount fails
// it removes a volume that it created: after some errors the kubelet never
// unpublishes it.
func (i *Volumes) Publish(ctx context.Context, req Request, mount func(*lvmdv1.Volume) error) error {
	ask, err := i.request(req)
	if err != nil {
		return err
	}
	release, err := i.options.Lock(ask.GetName())
	if err != nil {
		return err
	}
	defer release()
	volume, made, err := i.create(ctx, ask)
	if err != nil {
		return err
	}
	if err = mount(volume); err != nil && made {
		err = errors.Join(err, i.Remove(context.WithoutCancel(ctx), ask.GetName()))
	}
	return err
}

func (i *Volumes) request(r Request) (*lvmdv1.CreateVolumeRequest, error) {
	req, attributes := r.CSI, r.CSI.GetVolumeContext()
	switch {
	case !i.options.Enabled:
		return nil, csierror.New(codes.FailedPrecondition, errors.New("inline volumes are switched off on this node (--inline-volumes of carve-node): "+
			"use a generic ephemeral volume, spec.volumes[].ephemeral, instead"))
	case attributes[contextEphemeral] != "true":
		return nil, csierror.New(codes.FailedPrecondition, fmt.Errorf("the kubelet does not say whose volume this is: "+
			"CSIDriver %s must have podInfoOnMount: true for inline volumes", names.Driver))
	case !IsID(req.GetVolumeId()):
		return nil, csierror.Invalid("volume_id", "%.140q is not allowed for an inline volume: csi- and 64 hexadecimal digits are", req.GetVolumeId())
	case r.Block:
		return nil, csierror.Invalid("volume_capability.access_type", "block is not allowed: inline volumes have a file system")
	}
	uid, err := i.options.Kubelet.PodOf(req.GetTargetPath())
	if err != nil {
		return nil, err
	}
	if given := attributes[contextPodUID]; given != uid {
		return nil, csierror.Invalid("target_path", "%q is not allowed: it belongs to Pod %s, the volume to Pod %q", req.GetTargetPath(), uid, given)
	}
	size, err := checkAttributes(attributes)
	if err != nil {
		return nil, err
	}
	settings, err := settingsOf(attributes, r.FSType)
	if err != nil {
		return nil, err
	}
	return &lvmdv1.CreateVolumeRequest{
		Name: req.GetVolumeId(), DeviceClass: attributes[names.ParamDeviceClass], RequiredBytes: size,
		Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM, FsType: r.FSType,
		Owner:      &lvmdv1.Owner{PodNamespace: attributes[contextPodNamespace], PodName: attributes[contextPodName], PodUid: uid},
		Encryption: attributes[names.ParamEncryption], Profile: attributes[names.ParamProfile],
		FsSettings: settings,
	}, nil
}

var allowedAttributes = []string{names.AttributeSize, names.ParamDeviceClass, names.ParamEncryption, names.ParamProfile}

// checkAttributes rejects unknown volumeAttributes and returns the size in
// bytes. lvmd checks the rest.
func checkAttributes(attributes map[string]string) (size int64, err error) {
	for _, key := range slices.Sorted(maps.Keys(attributes)) {
		kubelets := key == contextEphemeral || strings.HasPrefix(key, contextPod) || strings.HasPrefix(key, contextAccount)
		if !kubelets && !slices.Contains(allowedAttributes, key) && !strings.HasPrefix(key, names.ParamMkfsPrefix) {
			return 0, csierror.Invalid("volumeAttributes", "key %q is not allowed: %s and %s… are, and the file system goes into fsType beside them",
				key, strings.Join(allowedAttributes, ", "), names.ParamMkfsPrefix)
		}
		if key == names.ParamMkfsPrefix+"label" {
			return 0, csierror.Invalid("volumeAttributes["+key+"]", "a label is not allowed for an inline volume: it could hide a file system of the host in /dev/disk/by-label")
		}
		if key == names.ParamEncryption && !slices.Contains([]string{"", names.EncryptionEphemeral}, attributes[key]) {
			return 0, csierror.Invalid("volumeAttributes["+key+"]", "%q is not allowed for a volume that ends with its Pod: %q is",
				attributes[key], names.EncryptionEphemeral)
		}
	}
	given := attributes[names.AttributeSize]
	field := fmt.Sprintf("volumeAttributes[%s]", names.AttributeSize)
	if given == "" {
		return 0, csierror.Invalid(field, "a value is required, such as 10Gi")
	}
	amount, err := resource.ParseQuantity(given)
	if err != nil || amount.Sign() <= 0 || amount.CmpInt64(maxSize) > 0 {
		return 0, csierror.Invalid(field, "%q is not allowed: a quantity from 1 to %s is, such as 10Gi", given, quantity.Bytes(maxSize))
	}
	return amount.Value(), nil
}

func settingsOf(attributes map[string]string, fsType string) (map[string]string, error) {
	given := map[string]string{}
	for key, value := range attributes {
		if name, ok := strings.CutPrefix(key, names.ParamMkfsPrefix); ok {
			given[name] = value
		}
	}
	if len(given) == 0 {
		return nil, nil
	}
	t, err := filesystem.ParseType(fsType)
	if err != nil {
		return nil, csierror.Invalid("fsType", "%v", err)
	}
	settings, err := filesystem.ParseSettings(filesystem.Use{Type: t, Profile: filesystem.Profile(attributes[names.ParamProfile])}, given)
	var refused *filesystem.OptionError
	switch {
	case errors.As(err, &refused):
		return nil, csierror.Invalid(fmt.Sprintf("volumeAttributes[%s%s]", names.ParamMkfsPrefix, refused.Name), "%v", err)
	case err != nil:
		return nil, csierror.Invalid("volumeAttributes", "%v", err)
	}
	return settings.Map(), nil
}

// create also returns whether the volume is new.
func (i *Volumes) create(ctx context.Context, ask *lvmdv1.CreateVolumeRequest) (v *lvmdv1.Volume, made bool, err error) {
	before, err := i.options.LVMD.Named(ctx, ask.GetName())
	if err != nil {
		return nil, false, err
	}
	if uid := before.GetOwner().GetPodUid(); before != nil && uid != ask.GetOwner().GetPodUid() {
		return nil, false, csierror.New(codes.AlreadyExists,
			fmt.Errorf("volume %s, named %s, belongs to Pod %q: Pod %s asked for it", before.GetId(), before.GetName(), uid, ask.GetOwner().GetPodUid()))
	}
	if before == nil {
		if err := i.checkSize(ask); err != nil {
			i.options.Count(EventTooLarge)
			return nil, false, err
		}
	}
	answer, err := i.options.LVMD.CreateVolume(ctx, ask)
	code, message := status.Code(err), status.Convert(err).Message()
	switch v = answer.GetVolume(); {
	case code == codes.NotFound:
		return nil, false, csierror.Invalid(fmt.Sprintf("volumeAttributes[%s]", names.ParamDeviceClass), "lvmd: %s", message)
	case err != nil:
		i.options.Count(EventRefused)
		return nil, false, csierror.New(code, fmt.Errorf("lvmd: %s", message))
	case v.GetName() != ask.GetName() || v.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY:
		return nil, false, fmt.Errorf("lvmd answered with volume %q, %v, instead of %q", v.GetName(), v.GetState(), ask.GetName())
	}
	if made = before == nil; made {
		i.options.Count(EventMade)
		i.options.Log.Info("made an inline volume", "volume", v.GetId(), "name", v.GetName(), "bytes", v.GetSizeBytes(),
			"pod", v.GetOwner().GetPodNamespace()+"/"+v.GetOwner().GetPodName())
	}
	return v, made, nil
}

// checkSize applies only to a new volume: an existing one may have been created
// under another limit.
func (i *Volumes) checkSize(ask *lvmdv1.CreateVolumeRequest) error {
	largest := i.options.MaxBytes
	if largest == 0 || ask.GetRequiredBytes() <= largest {
		return nil
	}
	return csierror.Invalid(fmt.Sprintf("volumeAttributes[%s]", names.AttributeSize), "%s are not allowed: this node makes inline volumes of at most %s "+
		"(--inline-max-size of carve-node); use a generic ephemeral volume, spec.volumes[].ephemeral, for a larger one", quantity.Bytes(ask.GetRequiredBytes()), quantity.Bytes(largest))
}

// Remove removes an inline volume, and succeeds if none exists.
func (i *Volumes) Remove(ctx context.Context, name string) error {
	v, err := i.options.LVMD.Named(ctx, name)
	switch {
	case err != nil:
		return err
	case v == nil:
		return nil
	case v.GetOwner().GetPodUid() == "":
		return csierror.New(codes.FailedPrecondition, fmt.Errorf("volume %s, named %s, belongs to no Pod and is not removed", v.GetId(), name))
	}
	return i.delete(ctx, v, EventRemoved)
}

func (i *Volumes) delete(ctx context.Context, v *lvmdv1.Volume, why string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	if _, err := i.options.LVMD.DeleteVolume(ctx, &lvmdv1.DeleteVolumeRequest{Id: v.GetId()}); err != nil {
		return csierror.New(status.Code(err), i.options.Explain(fmt.Errorf("lvmd: %s", status.Convert(err).Message()), v))
	}
	i.options.Count(why)
	i.options.Log.Info("removed an inline volume", "volume", v.GetId(), "name", v.GetName(), "bytes", v.GetSizeBytes(),
		"pod", v.GetOwner().GetPodNamespace()+"/"+v.GetOwner().GetPodName())
	return nil
}
