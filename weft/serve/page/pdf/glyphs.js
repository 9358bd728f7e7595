// Characters of the simple fonts of a PDF file: glyph names, and the encodings that the format defines.

const table = (text) => Object.fromEntries(text.trim().split(/\s+/).map((pair) => [pair.slice(1), pair[0]]));

/** A character and its glyph name. Letters with accents are composed from the parts of their names. */
const NAMES = table(`
!exclam "quotedbl #numbersign $dollar %percent &ampersand 'quotesingle (parenleft )parenright *asterisk +plus ,comma -hyphen
.period /slash 0zero 1one 2two 3three 4four 5five 6six 7seven 8eight 9nine :colon ;semicolon <less =equal >greater ?question
@at [bracketleft \\backslash ]bracketright ^asciicircum _underscore \`grave {braceleft |bar }braceright ~asciitilde
¡exclamdown ¢cent £sterling ¤currency ¥yen ¦brokenbar §section ¨dieresis ©copyright ªordfeminine «guillemotleft ¬logicalnot
®registered ¯macron °degree ±plusminus ²twosuperior ³threesuperior ´acute µmu ¶paragraph ·periodcentered ¸cedilla
¹onesuperior ºordmasculine »guillemotright ¼onequarter ½onehalf ¾threequarters ¿questiondown ÆAE ÐEth ØOslash ÞThorn
ßgermandbls æae ðeth øoslash þthorn ×multiply ÷divide ŁLslash łlslash ŒOE œoe ıdotlessi ȷdotlessj ƒflorin ĐDcroat đdcroat
‘quoteleft ’quoteright ‚quotesinglbase “quotedblleft ”quotedblright „quotedblbase ‹guilsinglleft ›guilsinglright †dagger
‡daggerdbl •bullet …ellipsis ‰perthousand –endash —emdash ⁄fraction €Euro ™trademark −minus ˆcircumflex ˜tilde ˘breve
˙dotaccent ˚ring ˝hungarumlaut ˛ogonek ˇcaron ∂partialdiff ∆Delta ∏product ∑summation √radical ∞infinity ∫integral
≈approxequal ≠notequal ≤lessequal ≥greaterequal ◊lozenge Ωohm ←arrowleft ↑arrowup →arrowright ↓arrowdown ↔arrowboth
⇒arrowdblright ⇔arrowdblboth ∈element ∉notelement ∩intersection ∪union ⊂propersubset ⊆reflexsubset ∀universal ∃existential
∅emptyset ∇gradient ⟨angbracketleft ⟩angbracketright ‖bardbl ∗asteriskmath ∼similar ≡equivalence ∝proportional ⊕circleplus
⊗circlemultiply ∧logicaland ∨logicalor ′prime
`);
const LIGATURES = { ff: "ff", fi: "fi", fl: "fl", ffi: "ffi", ffl: "ffl", space: " ", nbspace: "\u00a0", sfthyphen: "-" };
const ACCENTS = {
  acute: "\u0301",
  grave: "\u0300",
  circumflex: "\u0302",
  dieresis: "\u0308",
  tilde: "\u0303",
  ring: "\u030a",
  cedilla: "\u0327",
  caron: "\u030c",
  ogonek: "\u0328",
  macron: "\u0304",
  breve: "\u0306",
  dotaccent: "\u0307",
  hungarumlaut: "\u030b",
  commaaccent: "\u0326",
};
const ACCENTED = new RegExp(`^([A-Za-z])(${Object.keys(ACCENTS).join("|")})$`);
const GREEK = ("alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma1 sigma tau " +
  "upsilon phi chi psi omega").split(" ");

/** The text that a glyph of this name shows, or "" where the name does not say. */
export function characterOf(name) {
  const [plain] = name.split(".");
  if (!plain) return "";
  if (plain.includes("_")) return plain.split("_").map(characterOf).join("");
  if (plain.length === 1) return plain;
  if (Object.hasOwn(LIGATURES, plain)) return LIGATURES[plain];
  if (Object.hasOwn(NAMES, plain)) return NAMES[plain];
  const accented = ACCENTED.exec(plain);
  if (accented) return (accented[1] + ACCENTS[accented[2]]).normalize("NFC");
  const greek = GREEK.indexOf(plain.toLowerCase());
  if (greek >= 0) return String.fromCodePoint((/^[A-Z]/.test(plain) ? 0x391 : 0x3b1) + greek);
  const units = /^uni((?:[0-9A-F]{4})+)$/.exec(plain);
  if (units) return units[1].replace(/.{4}/g, (four) => String.fromCharCode(parseInt(four, 16)));
  const point = /^u([0-9A-F]{4,6})$/.exec(plain);
  return point && parseInt(point[1], 16) <= 0x10ffff ? String.fromCodePoint(parseInt(point[1], 16)) : "";
}

const ALL = Uint8Array.from({ length: 256 }, (_, i) => i);
/** Windows-1252 from 80 to 9F; a code without a character shows as a bullet, as the format wants it. */
const WINDOWS = "€•‚ƒ„…†‡ˆ‰Š‹Œ•Ž••‘’“”•–—˜™š›œ•žŸ";

/** Where StandardEncoding differs from ASCII: a code in hexadecimal and its character. */
const STANDARD = "27’60‘a1¡a2¢a3£a4⁄a5¥a6ƒa7§a8¤a9'aa“ab«ac‹ad›b1–b2†b3‡b4·b6¶b7•b8‚b9„ba”bb»bc…bd‰bf¿c1`c2´c3ˆc4˜c5¯c6˘c7˙" +
  "c8¨ca˚cb¸cd˝ce˛cfˇd0—e1Æe3ªe8Łe9ØeaŒebºf1æf5ıf8łf9øfaœfbß";

function standard() {
  const made = Array.from({ length: 256 }, (_, i) => (i >= 32 && i < 127 ? String.fromCharCode(i) : ""));
  for (const [, code, character] of STANDARD.matchAll(/([0-9a-f]{2})(.)/gu)) made[parseInt(code, 16)] = character;
  made[0xae] = "fi";
  made[0xaf] = "fl";
  return made;
}

/** The 256 characters of an encoding by name; StandardEncoding where the name is not known. */
export function encodingOf(name) {
  if (name === "WinAnsiEncoding") return Array.from(ALL, (i) => WINDOWS[i - 128] ?? String.fromCharCode(i));
  if (name === "MacRomanEncoding") return [...new TextDecoder("macintosh").decode(ALL)];
  return standard();
}

// Widths of Helvetica from space to ~, in thousandths of an em: files need not state them for the standard fonts.
const HELVETICA = ("278 278 355 556 556 889 667 191 333 333 389 584 278 333 278 278 556 556 556 556 556 556 556 556 556 556 " +
  "278 278 584 584 584 556 1015 667 667 722 722 667 611 778 722 278 500 667 556 833 722 778 667 778 722 667 611 722 667 " +
  "944 667 667 611 278 278 278 469 556 333 556 556 500 556 556 278 556 556 222 222 500 222 833 556 556 556 556 333 500 " +
  "278 556 500 722 500 500 500 334 260 334 584").split(" ").map(Number);

/** How wide a character of a standard font is. Times is a little narrower than Helvetica; the difference is below a space. */
export const standardWidth = (font, code) => (/Courier|Mono/i.test(font) ? 600 : HELVETICA[code - 32] ?? 556);
