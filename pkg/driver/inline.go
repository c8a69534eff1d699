package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/resource"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/driver/nofollow"
	"github.com/carve-csi/carve/pkg/filesystem"
)

// An inline volume is one that a Pod defines in its own specification. It has
// no claim: it is made when it is published, mounted at its target path without
// being staged, and removed when it is unpublished. At lvmd its name is the id
// that the kubelet gives it, and its owner is the Pod.

// inlineID is the form of that id: a digest of the Pod's UID and the volume's
// name in the Pod.
var inlineID = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)

// Keys of the volume context that a kubelet adds when the CSIDriver object has
// podInfoOnMount. They replace what a Pod may have put there itself.
const (
	contextEphemeral    = "csi.storage.k8s.io/ephemeral"
	contextPod          = "csi.storage.k8s.io/pod."
	contextPodName      = contextPod + "name"
	contextPodNamespace = contextPod + "namespace"
	contextPodUID       = contextPod + "uid"
	contextAccount      = "csi.storage.k8s.io/serviceAccount."
)

// maxInlineSize bounds sizes so that rounding up cannot overflow.
const maxInlineSize = math.MaxInt64 / 2

// removeTimeout bounds a deletion at lvmd, which wipes later.
const removeTimeout = 30 * time.Second

// isInline tells whether a volume is asked for by a Pod itself. The kubelet
// says so, if it is told to; by the id it shows that it was not told.
func isInline(req *csi.NodePublishVolumeRequest) bool {
	return req.GetVolumeContext()[contextEphemeral] == "true" || inlineID.MatchString(req.GetVolumeId())
}

// publishInline makes a volume, unless it is there, and mounts it at the target
// path. What a call made it takes back when it fails: after some errors the
// kubelet never asks for the volume to be unpublished.
func (n *Node) publishInline(ctx context.Context, req *csi.NodePublishVolumeRequest, want capability) error {
	ask, err := n.inlineRequest(req, want)
	if err != nil {
		return err
	}
	release, err := n.lock(ask.GetName())
	if err != nil {
		return err
	}
	defer release()
	v, made, err := n.inlineVolume(ctx, ask)
	if err != nil {
		return err
	}
	if err = n.mountInline(v, req.GetTargetPath(), want); err != nil && made {
		err = errors.Join(err, n.removeInline(context.WithoutCancel(ctx), ask.GetName()))
	}
	return err
}

// inlineRequest checks what a Pod asks for and puts it into lvmd's words.
func (n *Node) inlineRequest(req *csi.NodePublishVolumeRequest, want capability) (*lvmdv1.CreateVolumeRequest, error) {
	attributes := req.GetVolumeContext()
	switch {
	case !n.options.InlineVolumes:
		return nil, &failure{codes.FailedPrecondition, errors.New("inline volumes are switched off on this node (--inline-volumes of carve-node): " +
			"use a generic ephemeral volume, spec.volumes[].ephemeral, instead")}
	case attributes[contextEphemeral] != "true":
		return nil, &failure{codes.FailedPrecondition, fmt.Errorf("the kubelet does not say whose volume this is: "+
			"CSIDriver %s must have podInfoOnMount: true for inline volumes", names.Driver)}
	case !inlineID.MatchString(req.GetVolumeId()):
		return nil, invalid("volume_id", "%.140q is not allowed for an inline volume: csi- and 64 hexadecimal digits are", req.GetVolumeId())
	case want.block:
		return nil, invalid("volume_capability.access_type", "block is not allowed: inline volumes have a file system")
	}
	uid, err := n.podOf(req.GetTargetPath())
	if err != nil {
		return nil, err
	}
	if given := attributes[contextPodUID]; given != uid {
		return nil, invalid("target_path", "%q is not allowed: it belongs to Pod %s, the volume to Pod %q", req.GetTargetPath(), uid, given)
	}
	size, err := checkAttributes(attributes)
	if err != nil {
		return nil, err
	}
	settings, err := inlineSettings(attributes, want.fsType)
	if err != nil {
		return nil, err
	}
	return &lvmdv1.CreateVolumeRequest{
		Name: req.GetVolumeId(), DeviceClass: attributes[names.ParamDeviceClass], RequiredBytes: size,
		Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM, FsType: want.fsType,
		Owner:      &lvmdv1.Owner{PodNamespace: attributes[contextPodNamespace], PodName: attributes[contextPodName], PodUid: uid},
		Encryption: attributes[names.ParamEncryption], Profile: attributes[names.ParamProfile],
		FsSettings: settings,
	}, nil
}

// podOf returns the UID of the Pod that a target path belongs to. Only paths of
// the form that the kubelet gives are allowed: by its Pod's directory it is told
// later whether anybody needs the volume.
func (n *Node) podOf(target string) (string, error) {
	part := strings.Split(strings.TrimPrefix(target, n.options.KubeletDir+"/"), "/")
	if len(part) != 6 || part[0] != "pods" || part[2] != "volumes" || part[3] != "kubernetes.io~csi" || part[5] != "mount" {
		return "", invalid("target_path", "%q is not allowed for an inline volume: %s is", target,
			filepath.Join(n.options.KubeletDir, "pods/UID/volumes/kubernetes.io~csi/NAME/mount"))
	}
	return part[1], nil
}

// inlineAttributes are the volumeAttributes that a Pod may set.
var inlineAttributes = []string{names.AttributeSize, names.ParamDeviceClass, names.ParamEncryption, names.ParamProfile}

// checkAttributes checks the volumeAttributes of a Pod's volume, of which all
// have to be known, and returns the size in bytes. What the others may be is for
// lvmd to say.
func checkAttributes(attributes map[string]string) (size int64, err error) {
	for _, key := range slices.Sorted(maps.Keys(attributes)) {
		kubelets := key == contextEphemeral || strings.HasPrefix(key, contextPod) || strings.HasPrefix(key, contextAccount)
		if !kubelets && !slices.Contains(inlineAttributes, key) && !strings.HasPrefix(key, names.ParamMkfsPrefix) {
			return 0, invalid("volumeAttributes", "key %q is not allowed: %s and %s… are, and the file system goes into fsType beside them",
				key, strings.Join(inlineAttributes, ", "), names.ParamMkfsPrefix)
		}
		if key == names.ParamEncryption && !slices.Contains([]string{"", names.EncryptionEphemeral}, attributes[key]) {
			return 0, invalid("volumeAttributes["+key+"]", "%q is not allowed for a volume that ends with its Pod: %q is",
				attributes[key], names.EncryptionEphemeral)
		}
	}
	given := attributes[names.AttributeSize]
	field := fmt.Sprintf("volumeAttributes[%s]", names.AttributeSize)
	if given == "" {
		return 0, invalid(field, "a value is required, such as 10Gi")
	}
	quantity, err := resource.ParseQuantity(given)
	if err != nil || quantity.Sign() <= 0 || quantity.CmpInt64(maxInlineSize) > 0 {
		return 0, invalid(field, "%q is not allowed: a quantity from 1 to %d bytes is, such as 10Gi", given, int64(maxInlineSize))
	}
	return quantity.Value(), nil
}

// inlineSettings are how a Pod wants its volume's file system to be made.
func inlineSettings(attributes map[string]string, fsType string) (map[string]string, error) {
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
		return nil, invalid("fsType", "%v", err)
	}
	settings, err := filesystem.ParseSettings(filesystem.Use{Type: t, Profile: filesystem.Profile(attributes[names.ParamProfile])}, given)
	var refused *filesystem.OptionError
	switch {
	case errors.As(err, &refused):
		return nil, invalid(fmt.Sprintf("volumeAttributes[%s%s]", names.ParamMkfsPrefix, refused.Name), "%v", err)
	case err != nil:
		return nil, invalid("volumeAttributes", "%v", err)
	}
	return settings.Map(), nil
}

// inlineVolume returns the volume that was asked for, and whether this call
// made it.
func (n *Node) inlineVolume(ctx context.Context, ask *lvmdv1.CreateVolumeRequest) (v *lvmdv1.Volume, made bool, err error) {
	before, err := n.named(ctx, ask.GetName())
	if err != nil {
		return nil, false, err
	}
	if uid := before.GetOwner().GetPodUid(); before != nil && uid != ask.GetOwner().GetPodUid() {
		return nil, false, &failure{codes.AlreadyExists,
			fmt.Errorf("volume %s, named %s, belongs to Pod %q: Pod %s asked for it", before.GetId(), before.GetName(), uid, ask.GetOwner().GetPodUid())}
	}
	if before == nil {
		if err := n.checkInlineSize(ask); err != nil {
			n.options.Metrics.inline(inlineTooLarge)
			return nil, false, err
		}
	}
	answer, err := n.options.LVMD.CreateVolume(ctx, ask)
	code, message := status.Code(err), status.Convert(err).Message()
	switch v = answer.GetVolume(); {
	case code == codes.NotFound:
		return nil, false, invalid(fmt.Sprintf("volumeAttributes[%s]", names.ParamDeviceClass), "lvmd: %s", message)
	case err != nil:
		n.options.Metrics.inline(inlineRefused)
		return nil, false, &failure{code, fmt.Errorf("lvmd: %s", message)}
	case v.GetName() != ask.GetName() || v.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY:
		return nil, false, fmt.Errorf("lvmd answered with volume %q, %v, instead of %q", v.GetName(), v.GetState(), ask.GetName())
	}
	if made = before == nil; made {
		n.options.Metrics.inline(inlineMade)
		n.options.Log.Info("made an inline volume", "volume", v.GetId(), "name", v.GetName(), "bytes", v.GetSizeBytes(),
			"pod", v.GetOwner().GetPodNamespace()+"/"+v.GetOwner().GetPodName())
	}
	return v, made, nil
}

// checkInlineSize refuses a volume that is to be made and is larger than this node
// allows. It does not concern one that was made under another limit.
func (n *Node) checkInlineSize(ask *lvmdv1.CreateVolumeRequest) error {
	largest := n.options.InlineMaxBytes
	if largest == 0 || ask.GetRequiredBytes() <= largest {
		return nil
	}
	return invalid(fmt.Sprintf("volumeAttributes[%s]", names.AttributeSize), "%d bytes are not allowed: this node makes inline volumes of at most %s, "+
		"%d bytes (--inline-max-size of carve-node)", ask.GetRequiredBytes(), resource.NewQuantity(largest, resource.BinarySI), largest)
}

// mountInline mounts a volume at its target path.
func (n *Node) mountInline(v *lvmdv1.Volume, target string, want capability) error {
	// The sweep knows the volume by this id.
	release, err := n.lock(v.GetId())
	if err != nil {
		return err
	}
	defer release()
	device, err := n.deviceNode(v)
	if err != nil {
		return err
	}
	made := false
	// What does not answer is dealt with below.
	if at, err := n.options.Mounts.At(target); err == nil && !at.Mounted {
		if made, err = n.makeTarget(target, false); err != nil {
			return fmt.Errorf("target_path: %w", err)
		}
	}
	if err = n.stage(v, device, target, want); err != nil && made {
		err = errors.Join(err, nofollow.Remove(n.options.KubeletDir, target))
	}
	return err
}

// removeInline removes an inline volume. It succeeds when there is none.
func (n *Node) removeInline(ctx context.Context, name string) error {
	v, err := n.named(ctx, name)
	switch {
	case err != nil:
		return err
	case v == nil:
		return nil
	case v.GetOwner().GetPodUid() == "":
		return &failure{codes.FailedPrecondition, fmt.Errorf("volume %s, named %s, belongs to no Pod and is not removed", v.GetId(), name)}
	}
	return n.deleteInline(ctx, v, inlineRemoved)
}

// deleteInline has lvmd delete a volume, which it does not if it is in use.
func (n *Node) deleteInline(ctx context.Context, v *lvmdv1.Volume, why string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	if _, err := n.options.LVMD.DeleteVolume(ctx, &lvmdv1.DeleteVolumeRequest{Id: v.GetId()}); err != nil {
		return &failure{status.Code(err), n.withHolders(fmt.Errorf("lvmd: %s", status.Convert(err).Message()), deviceOf(v))}
	}
	n.options.Metrics.inline(why)
	n.options.Log.Info("removed an inline volume", "volume", v.GetId(), "name", v.GetName(), "bytes", v.GetSizeBytes(),
		"pod", v.GetOwner().GetPodNamespace()+"/"+v.GetOwner().GetPodName())
	return nil
}

// named asks lvmd for a volume by its name; nil when there is none.
func (n *Node) named(ctx context.Context, name string) (*lvmdv1.Volume, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	answer, err := n.options.LVMD.GetVolume(ctx, &lvmdv1.GetVolumeRequest{Name: name}, grpc.WaitForReady(true))
	switch code := status.Code(err); {
	case err == nil:
		return answer.GetVolume(), nil
	case code == codes.NotFound:
		return nil, nil
	case code == codes.DeadlineExceeded:
		return nil, &failure{codes.Unavailable, fmt.Errorf("lvmd did not answer within %v: %w", lookupTimeout, err)}
	default:
		return nil, &failure{code, fmt.Errorf("lvmd: %s", status.Convert(err).Message())}
	}
}

// find looks a volume up by the id that the kubelet knows it by.
func (n *Node) find(ctx context.Context, id string) (*lvmdv1.Volume, error) {
	if !inlineID.MatchString(id) {
		return n.lookup(ctx, id)
	}
	v, err := n.named(ctx, id)
	if err == nil && v == nil {
		err = &failure{codes.NotFound, fmt.Errorf("there is no inline volume %q", id)}
	}
	return v, err
}

// unpublish takes a volume off a target path and removes it, if it is an inline
// one, and the path.
func (n *Node) unpublish(ctx context.Context, id, target string) error {
	if err := n.options.Mounts.Off(target); err != nil {
		return fmt.Errorf("volume %s: %w", id, err)
	}
	if inlineID.MatchString(id) {
		if err := n.removeInline(ctx, id); err != nil {
			return err
		}
	}
	// A directory that is not empty is kept: what is in it was written while
	// nothing was mounted, and is not ours to throw away.
	if err := nofollow.Remove(n.options.KubeletDir, target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("volume %s is off its target path: %w", id, err)
	}
	return nil
}
