package kubectl

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/kubectl/adoption"
	"github.com/carve-csi/carve/pkg/stagesecret"
)

// ErrNoKey means that no Secret is known for an encrypted volume: no Pod could start with it, and
// the PersistentVolume cannot get the Secret's name later.
var ErrNoKey = errors.New("no Secret with the volume's key is known")

// Claimed holds the objects that bind an orphan to a claim.
type Claimed struct {
	PersistentVolume *corev1.PersistentVolume      `json:"persistentVolume"`
	Claim            *corev1.PersistentVolumeClaim `json:"claim"`
	// Made reports whether the objects were created, not only shown.
	Made bool `json:"made"`
}

func (p *plugin) claimCommand() *cobra.Command {
	var name, class string
	var yes, foreign bool
	command := &cobra.Command{
		Use: "adopt ID", Short: "Give an orphan, with all it holds, to a new claim", Args: cobra.ExactArgs(1),
		Long: "Makes a claim and the PersistentVolume that gives it the orphan. The PersistentVolume has the policy Retain.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.do(cmd.Context(), func(ctx context.Context, client kubernetes.Interface, run run) error {
				o, err := p.orphan(ctx, client, run, args[0], foreign)
				if err != nil {
					return err
				}
				s, err := p.read(ctx, client)
				if err != nil {
					return err
				}
				chosen, err := s.chooseClass(class)
				if err != nil {
					return err
				}
				result, err := claimed(o, p.namespace, name, &chosen)
				if err != nil {
					return err
				}
				if yes {
					if err := result.make(ctx, client); err != nil {
						return err
					}
				}
				var rows [][]string
				for _, object := range []any{result.PersistentVolume, result.Claim} {
					text, err := yaml.Marshal(object)
					if err != nil {
						return fmt.Errorf("print the objects: %w", err)
					}
					rows = append(rows, []string{"---\n" + string(text)})
				}
				if secret := result.PersistentVolume.Spec.CSI.NodeStageSecretRef; secret != nil {
					rows = append(rows, []string{fmt.Sprintf("# Secret %s/%s must have the volume's key in its entry %q", secret.Namespace, secret.Name, names.SecretKey)})
				}
				last := "# --yes makes them"
				if result.Made {
					last = "# made"
				}
				return p.print(cmd.OutOrStdout(), result, append(rows, []string{last}))
			})
		},
	}
	flags := command.Flags()
	flags.StringVar(&name, "claim", "", "name of the new claim")
	flags.StringVar(&class, "storage-class", "", "StorageClass of Carve that the claim has; empty: the only one")
	flags.BoolVar(&yes, "yes", false, "make the objects; without, only show them")
	flags.BoolVar(&foreign, "foreign", false, "take it even if this cluster did not make it")
	_ = command.MarkFlagRequired("claim")
	return command
}

// claimed returns the objects that bind an orphan to a claim of a class, or ErrNoKey if no Pod
// could open the volume.
func claimed(o Orphan, namespace, name string, class *storagev1.StorageClass) (*Claimed, error) {
	size := corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(o.Bytes, resource.BinarySI)}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	mode := corev1.PersistentVolumeFilesystem
	if o.FSType == "" {
		mode = corev1.PersistentVolumeBlock
	}
	saved := &corev1.PersistentVolume{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"},
		ObjectMeta: metav1.ObjectMeta{Name: "carve-" + o.ID},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: modes, Capacity: size, StorageClassName: class.Name, VolumeMode: &mode, MountOptions: slices.Clone(class.MountOptions),
			ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: namespace, Name: name},
		},
	}
	pv := adoption.PersistentVolume(saved, o.volume, o.Node)
	pv.TypeMeta = saved.TypeMeta
	result := &Claimed{
		PersistentVolume: pv,
		Claim: &corev1.PersistentVolumeClaim{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: modes, StorageClassName: &class.Name, VolumeName: pv.Name, VolumeMode: &mode,
				Resources: corev1.VolumeResourceRequirements{Requests: size},
			},
		},
	}
	if o.volume.GetEncryption() != names.EncryptionLUKS {
		return result, nil
	}
	var err error
	pv.Spec.CSI.NodeStageSecretRef, err = stagesecret.Of(class.Parameters, result.Claim, pv.Name)
	if err == nil && pv.Spec.CSI.NodeStageSecretRef == nil {
		err = fmt.Errorf("it has no parameter %s", names.ParamStageSecretName)
	}
	if err != nil {
		return nil, fmt.Errorf("volume %s is encrypted, and %w: StorageClass %s: %w; name a StorageClass that says which Secret has it by --storage-class, see docs/how-to/encryption.md",
			o.ID, ErrNoKey, class.Name, err)
	}
	return result, nil
}

// make creates the claim first, so that a taken name fails before anything is created.
func (c *Claimed) make(ctx context.Context, client kubernetes.Interface) error {
	if _, err := client.CoreV1().PersistentVolumeClaims(c.Claim.Namespace).Create(ctx, c.Claim, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make the claim: %w", err)
	}
	if _, err := client.CoreV1().PersistentVolumes().Create(ctx, c.PersistentVolume, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make the PersistentVolume: %w", err)
	}
	c.Made = true
	return nil
}
