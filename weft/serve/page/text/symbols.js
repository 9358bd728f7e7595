// What LaTeX's commands stand for in MathML: identifiers, operators, functions, accents and alphabets.

/** Pairs of name and character, written as a table. */
const table = (text) => Object.fromEntries(text.trim().split(/\s+/).map((pair) => pair.split("=")));

/** Identifiers (mi). */
export const LETTERS = table(`
alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ vartheta=ϑ iota=ι kappa=κ lambda=λ mu=μ nu=ν
xi=ξ omicron=ο pi=π varpi=ϖ rho=ρ varrho=ϱ sigma=σ varsigma=ς tau=τ upsilon=υ phi=ϕ varphi=φ chi=χ psi=ψ omega=ω
Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ Upsilon=Υ Phi=Φ Psi=Ψ Omega=Ω
infty=∞ partial=∂ nabla=∇ ell=ℓ hbar=ℏ Re=ℜ Im=ℑ aleph=ℵ wp=℘ imath=ı jmath=ȷ emptyset=∅ varnothing=∅ top=⊤ bot=⊥
angle=∠ triangle=△ square=□ Box=□ blacksquare=■ diamond=⋄ star=⋆ checkmark=✓ dagger=† ddagger=‡
ldots=… dots=… cdots=⋯ vdots=⋮ ddots=⋱ dotsc=… dotsb=⋯ degree=° prime=′ S=§ P=¶ copyright=© pounds=£ euro=€
`);

/** Operators and relations (mo). */
export const OPERATORS = table(`
pm=± mp=∓ times=× div=÷ cdot=⋅ ast=∗ circ=∘ bullet=∙ oplus=⊕ ominus=⊖ otimes=⊗ oslash=⊘ odot=⊙ wedge=∧ land=∧ vee=∨ lor=∨
cap=∩ cup=∪ sqcap=⊓ sqcup=⊔ setminus=∖ backslash=\\ wr=≀ amalg=⨿ neg=¬ lnot=¬ forall=∀ exists=∃ nexists=∄
le=≤ leq=≤ leqslant=⩽ ge=≥ geq=≥ geqslant=⩾ ne=≠ neq=≠ equiv=≡ approx=≈ sim=∼ simeq=≃ cong=≅ propto=∝ ll=≪ gg=≫ doteq=≐
prec=≺ succ=≻ preceq=⪯ succeq=⪰ subset=⊂ supset=⊃ subseteq=⊆ supseteq=⊇ subsetneq=⊊ sqsubseteq=⊑ in=∈ ni=∋ notin=∉
perp=⊥ parallel=∥ mid=∣ nmid=∤ vdash=⊢ dashv=⊣ models=⊨ asymp=≍ bowtie=⋈ therefore=∴ because=∵
to=→ rightarrow=→ gets=← leftarrow=← leftrightarrow=↔ Rightarrow=⇒ Leftarrow=⇐ Leftrightarrow=⇔ iff=⟺ implies=⟹ impliedby=⟸
longrightarrow=⟶ longleftarrow=⟵ Longrightarrow=⟹ Longleftarrow=⟸ Longleftrightarrow=⟺ mapsto=↦ longmapsto=⟼ hookrightarrow=↪
uparrow=↑ downarrow=↓ updownarrow=↕ Uparrow=⇑ Downarrow=⇓ nearrow=↗ searrow=↘ rightharpoonup=⇀ rightleftharpoons=⇌ leadsto=⇝
colon=: lt=< gt=> lbrack=[ rbrack=] coloneqq=≔ triangleq=≜ dotplus=∔ ltimes=⋉ rtimes=⋊ trianglelefteq=⊴ lesssim=≲ gtrsim=≳
`);

/** Operators that stretch in a display and take limits above and below, and those that take them beside. */
export const SUMS = table(`
sum=∑ prod=∏ coprod=∐ bigcap=⋂ bigcup=⋃ bigoplus=⨁ bigotimes=⨂ bigodot=⨀ bigvee=⋁ bigwedge=⋀ biguplus=⨄ bigsqcup=⨆
`);
export const INTEGRALS = table("int=∫ iint=∬ iiint=∭ oint=∮ oiint=∯");

/** Functions by name; those in LIMITS take a script below them. */
export const FUNCTIONS = new Set((
  "sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan exp log ln lg det dim ker hom arg deg gcd Pr " +
  "lim max min sup inf limsup liminf argmax argmin"
).split(" "));
export const LIMITS = new Set("lim max min sup inf limsup liminf argmax argmin det gcd Pr".split(" "));

/** Fences by command; a character such as ( is its own. */
export const FENCES = {
  ...table(`
lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ langle=⟨ rangle=⟩ lvert=| rvert=| vert=| lVert=‖ rVert=‖ Vert=‖ lbrace={ rbrace=}
lbrack=[ rbrack=] uparrow=↑ downarrow=↓ lgroup=⟮ rgroup=⟯
`),
  "{": "{",
  "}": "}",
  "|": "‖",
};
export const FENCE_CHARACTERS = new Set("()[]|/.<>");

/** Accents: the character over or under what follows, and whether it stretches. */
export const OVER = {
  hat: ["^", false],
  widehat: ["^", true],
  bar: ["¯", false],
  overline: ["¯", true],
  vec: ["→", false],
  overrightarrow: ["→", true],
  overleftarrow: ["←", true],
  tilde: ["~", false],
  widetilde: ["~", true],
  dot: ["˙", false],
  ddot: ["¨", false],
  check: ["ˇ", false],
  breve: ["˘", false],
  acute: ["´", false],
  grave: ["`", false],
  mathring: ["˚", false],
  overbrace: ["⏞", true],
};
export const UNDER = { underline: "_", underbrace: "⏟" };

/** Widths of spaces, in em. */
export const SPACES = { ",": 0.167, ":": 0.222, ">": 0.222, ";": 0.278, "!": -0.167, " ": 0.25, quad: 1, qquad: 2 };

/** Where an alphabet's A, a and 0 are, and the letters that stand elsewhere. */
const ALPHABETS = {
  mathbf: [0x1d400, 0x1d41a, 0x1d7ce],
  boldsymbol: [0x1d400, 0x1d41a, 0x1d7ce],
  bm: [0x1d400, 0x1d41a, 0x1d7ce],
  mathbb: [0x1d538, 0x1d552, 0x1d7d8, "CℂHℍNℕPℙQℚRℝZℤ"],
  mathcal: [0x1d49c, 0x1d4b6, 0, "BℬEℰFℱHℋIℐLℒMℳRℛeℯgℊoℴ"],
  mathscr: [0x1d49c, 0x1d4b6, 0, "BℬEℰFℱHℋIℐLℒMℳRℛeℯgℊoℴ"],
  mathfrak: [0x1d504, 0x1d51e, 0, "CℭHℌIℑRℜZℨ"],
  mathsf: [0x1d5a0, 0x1d5ba, 0x1d7e2],
  mathtt: [0x1d670, 0x1d68a, 0x1d7f6],
};
export const FONTS = new Set([...Object.keys(ALPHABETS), "mathrm", "mathit", "mathnormal"]);
const BOLD_GREEK = { upper: [0x391, 0x1d6a8], lower: [0x3b1, 0x1d6c2] };

/** A character in one of the alphabets; what the alphabet does not have stays as it is. */
export function lettered(character, font) {
  const alphabet = ALPHABETS[font];
  if (!alphabet) return character;
  const [upper, lower, digit, others = ""] = alphabet;
  const at = [...others].indexOf(character);
  if (at >= 0 && at % 2 === 0) return [...others][at + 1];
  const code = character.codePointAt(0);
  if (/^[A-Z]$/.test(character)) return String.fromCodePoint(upper + code - 65);
  if (/^[a-z]$/.test(character)) return String.fromCodePoint(lower + code - 97);
  if (digit && /^[0-9]$/.test(character)) return String.fromCodePoint(digit + code - 48);
  if (upper === 0x1d400) {
    for (const [from, to] of Object.values(BOLD_GREEK)) {
      if (code >= from && code < from + 25) return String.fromCodePoint(to + code - from);
    }
  }
  return character;
}
